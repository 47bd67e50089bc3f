"""The vocabulary: fixed ids, and a round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.data import BOS, EOS, IMAGE, PAD, VOCABULARY_SIZE, WORDS, decode, encode
from hyperparallel.errors import DataError


def test_ids_are_fixed():
    assert (PAD, BOS, EOS, IMAGE, VOCABULARY_SIZE) == (0, 1, 2, 3, 16)
    assert encode("reads nothing zero nine") == [4, 5, 6, 15]


@given(st.lists(st.sampled_from(WORDS)))
def test_words_survive_the_round_trip(words):
    assert decode(encode(" ".join(words))) == " ".join(words)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: encode("<bos> sevn"), ["word 1", "'sevn'", "did you mean 'seven'"]),
        (lambda: encode("hello"), ["word 0", "'hello'", "the words are", "nothing"]),
        (lambda: decode([1, 16]), ["id 1 is 16", "0..15"]),
        (lambda: decode([-100]), ["id 0 is -100"]),
    ],
)
def test_unknown_words_and_ids_are_named(call, said):
    with pytest.raises(DataError) as error:
        call()
    for words in said:
        assert words in str(error.value)
