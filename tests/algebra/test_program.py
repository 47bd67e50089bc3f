import pytest
from algebra_cases import actions, quick
from hypothesis import given

from hyperparallel.algebra import Action, parse_action
from hyperparallel.errors import ProgramSyntaxError


@quick
@given(actions)
def test_every_action_parses_back(action):
    assert parse_action(str(action)) == action


GARBAGE = [
    "", " ", "2F0x", "1B", "B1", "-1F0", "1F-1", "٢F0", "2F٠", "2f0", "2F0 ", " 2F0", "2F0\n", "2F", "2SEND0",
    "2F0.", "2F.0", "2F0.0.0", "2F0.x",
    "2SENDF0", "2SEND_I0", "2RECV_W0", "2X0", "2FB0", "1_0F0", "+1F0", "0x1F0", "1e3F0", "9999999999F0", "0F9999999999",
]  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE, ids=map(ascii, GARBAGE))
def test_garbage_is_not_an_action(text):
    with pytest.raises(ProgramSyntaxError, match="not an action; expected stage, kind, micro-batch"):
        parse_action(text)


def test_the_vocabulary_of_the_design():
    assert parse_action("2SEND_F5") == Action(2, "SEND_F", 5)
    assert [parse_action(text).is_compute for text in ("6B3", "6I3", "6W3", "2F0", "2RECV_B5")] == [True] * 4 + [False]
