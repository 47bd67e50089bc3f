"""A program is read back from dependencies alone, and nothing that they leave open is taken for an order."""

import pytest
from dryrun_text import order, receive, send

from hyperparallel.algebra.program import parse_action
from hyperparallel.dryrun.proof import compare, read_step, repeated_forwards
from hyperparallel.errors import DryRunError

PROGRAM = ["0F0", "0SEND_F0", "0F1", "0RECV_B0", "0B0"]
SCOPE = "      # Fullname with scope: ({})"


def gate(action, value, token):
    return f'Depend({value}, {token}) primitive_attrs: {{action: "{action}"}}'


def product(reads, stage, backward=False, number=1):
    scope = f"{'Gradients/' if backward else ''}Default/stage_{stage}-_Chain/MatMul-op0"
    return f'MatMul({reads}, %para2_w) cnode_primal_attrs: {{unique_id: "{number}"}}\n{SCOPE.format(scope)}'


def rank_zero(second_token="%1", send_token="%1", message_stage=0):
    """Forward 0, its send, forward 1, a receive, backward 0."""
    return [
        f"%0(v) = {gate('0F0', '%para1_x', '%para3_rates')}",
        f"%1(v) = {product('%0', 0)}",
        f"%2(v) = {gate(f'{message_stage}SEND_F0', '%1', send_token)}",
        f"%3(v) = {send(0, 1, '%2')}",
        f"%4(v) = {gate('0F1', '%para1_y', second_token)}",
        f"%5(v) = {product('%4', 0)}",
        f"%6(v) = {gate('0RECV_B0', '%para4_blank', '%7')}",
        f"%8(v) = {receive(1, 1, '%6')}",
        f"%9(v) = {gate('0B0', '%8', '%5')}",
        f"%10(v) = {product('%9', 0, backward=True)}",
        "Return(%10)",
    ]


def read(lines):
    ordered = [line for line in lines if not line.startswith("%7")]
    # The receive waits for the send and the second forward.
    at = next(i for i, line in enumerate(ordered) if line.startswith("%6"))
    return read_step(order([*ordered[:at], "%7(v) = MakeTuple(%5, %3)", *ordered[at:]]))


def test_the_order_comes_out():
    step = read(rank_zero())
    assert [str(action) for action in step.actions] == PROGRAM
    assert compare(step, [parse_action(text) for text in PROGRAM]) == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("0F0 0F1 0SEND_F0 0RECV_B0 0B0", "action 1 of the graph is 0SEND_F0; the plan has 0F1 there"),
        ("0F0 0SEND_F0 0F1 0RECV_B0 0B0 0B1", "the graph has 5 actions; the plan has 6"),
    ],
)
def test_a_difference_is_named_with_its_place(program, said):
    assert compare(read(rank_zero()), [parse_action(text) for text in program.split()]) == [said]


def test_computes_that_nothing_orders_are_refused():
    with pytest.raises(DryRunError, match="nothing makes 0F[01] wait for 0F[01]"):
        read(rank_zero(second_token="%para3_rates"))


def test_operators_belong_to_the_last_gate_before_them():
    step = read(rank_zero())
    counts = {str(action): dict(operators) for action, operators in step.operators.items()}
    assert counts["0F0"] == counts["0F1"] == {("MatMul", False): 1}
    assert counts["0B0"] == {("MatMul", True): 1}


def test_a_forward_in_a_backward_is_seen():
    lines = [*rank_zero()[:-1], f"%11(v) = {product('%9', 0)}", "Return(%10, %11)"]
    assert [str(action) for action in repeated_forwards(read(lines))] == ["0B0"]
    assert repeated_forwards(read(rank_zero())) == []


@pytest.mark.parametrize(("number", "again"), [(1, ["0F1"]), (2, [])])
def test_a_forward_that_was_not_merged_is_seen(number, again):
    """The same product of the same weight twice in one action; two products of one weight are no repetition."""
    lines = [*rank_zero()[:-1], f"%11(v) = {product('%4', 0, number=number)}", "Return(%10, %11)"]
    assert [str(action) for action in repeated_forwards(read(lines))] == again


def test_a_forward_of_another_stage_is_refused():
    lines = rank_zero()
    lines[1] = f"%1(v) = {product('%0', 2)}"
    with pytest.raises(DryRunError, match="of stage 2 runs in 0F0"):
        read(lines)


def test_a_message_without_a_gate_is_refused():
    lines = rank_zero()
    lines[3] = f"%3(v) = {send(0, 1, '%1')}"
    with pytest.raises(DryRunError, match="no gate"):
        read(lines)


def test_a_send_where_the_plan_receives_is_refused():
    lines = rank_zero()
    lines[2] = f"%2(v) = {gate('0RECV_B1', '%1', '%1')}"
    with pytest.raises(DryRunError, match="stands where the plan has 0RECV_B1"):
        read(lines)
