import pytest
from algebra_cases import plan_of, table

from hyperparallel.algebra import Action, parse_action
from hyperparallel.algebra.progress import check_progress, counterpart
from hyperparallel.errors import PlanError


def test_the_two_ends_of_a_message_name_each_other():
    placement = plan_of("transpose(vision) >> 1f1b(llm)", 2, 2).placement
    for send, receive in [("1SEND_F1", "2RECV_F1"), ("2SEND_F0", "3RECV_F0"), ("3SEND_B0", "2RECV_B0")]:
        one, other = parse_action(send), parse_action(receive)
        assert counterpart(one, placement) == other
        assert counterpart(other, placement) == one
    assert counterpart(Action(2, "SEND_B", 1), placement) == Action(1, "RECV_B", 1)
    fold = plan_of("wave(llm)", 2, 2).placement
    assert counterpart(Action(3, "SEND_F", 0), fold) == Action(2, "RECV_F", 0)
    assert counterpart(Action(3, "RECV_B", 0), fold) == Action(2, "SEND_B", 0)


NAIVE = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 | 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
STUCK = "0F0 0F1 0RECV_B0 0SEND_F0 0SEND_F1 0B0 0RECV_B1 0B1 | 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"


@pytest.mark.parametrize(
    "text, rule, circle, way_out",
    [
        (
            NAIVE,
            "rendezvous",
            "(rank 0, 0SEND_F1) waits for 1RECV_F1, (rank 1, 1SEND_B0) waits for 0RECV_B0",
            "move the receive before the send",
        ),
        (
            STUCK,
            "buffered",
            "(rank 0, 0RECV_B0) waits for 1SEND_B0, (rank 1, 1RECV_F0) waits for 0SEND_F0",
            "move the awaited SEND before the RECV",
        ),
    ],
    ids=["the naive mirror of design section 6", "receive before send"],
)
def test_a_deadlock_names_its_rule_its_circle_and_a_way_out(text, rule, circle, way_out):
    with pytest.raises(PlanError) as error:
        check_progress(table(text), plan_of("1f1b(llm)").placement)
    assert f"deadlock with {rule} sends: {circle}" in str(error.value)
    assert way_out in str(error.value)
