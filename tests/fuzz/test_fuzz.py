"""Files made wrong in hundreds of ways: each is refused in one sentence, or is right; soon, and in little memory."""

import pytest
from fuzz_kinds import KINDS
from fuzz_worker import fuzz

MUTANTS = 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_file_is_refused_in_one_sentence(kind):
    tally = fuzz(kind, range(MUTANTS))
    assert tally.mutants == MUTANTS and not tally.problems, tally.problems[:5]
    assert tally.codes[2] > MUTANTS / 2, "most mutants of a file are wrong"
