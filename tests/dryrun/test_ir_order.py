import time

import pytest
from dryrun_text import all_reduce, graph, order, receive, send

from hyperparallel.dryrun import comm_only, compute_only, final_ir, marked, must_precede, unforced
from hyperparallel.errors import DryRunError


def gate(action, value, token):
    return f'Depend({value}, {token}) primitive_attrs: {{action: "{action}", side_effect_propagate: I64(1)}}'


def step():
    """A forward and a backward under gates, with messages in between."""
    return [
        f"%0(g) = {gate('4F2', '%para1_x', '%para2_t')}",
        "%1(h) = PrimFunc_MatMul(%0, %para3_w)",
        f"%2(s) = {send(5, 1, '%1')}",
        "%3(d) = Depend(%para1_x, %2) primitive_attrs: {side_effect_propagate: I64(1)}",
        f"%4(r) = {receive(6, 1, '%3')}",
        f"%5(g) = {gate('4B2', '%4', '%2')}",
        "%6(b) = PrimFunc_MatMulGrad(%5, %1)",
        "%7(t) = MakeTuple(%6, %1)",
        "%8(o) = Sum(%7)",
        "Return(%8)",
    ]


def test_events_of_a_step():
    events = order(step())
    assert [event.op for event in events] == ["Depend", "MatMul", "Send", "Receive", "Depend", "MatMulGrad", "Sum"]
    assert [event.index for event in events] == list(range(7))
    assert [event.op for event in compute_only(events)] == ["MatMul", "MatMulGrad", "Sum"]
    sent, received = comm_only(events)
    assert (sent.tag, sent.peer, sent.group, sent.shape, sent.dtype) == (5, 1, "world", (8, 8), "Float32")
    assert (received.tag, received.peer, received.op) == (6, 1, "Receive")


def test_what_must_precede():
    events = order(step())
    before = {event.op: [m.action or m.op for m in must_precede(events, event)] for event in compute_only(events)}
    assert before == {
        "MatMul": ["4F2"],
        "MatMulGrad": ["4F2", "Send", "Receive", "4B2"],
        "Sum": ["4F2", "Send", "Receive", "4B2"],
    }
    assert [m.mark for m in marked(events)] == [0, 1, 2, 3]
    assert events[1].before == 0b0001
    assert events[5].must_follow(events[4])
    assert not events[1].must_follow(events[2])


def test_inputs_look_through_bookkeeping_but_not_along_order():
    events = order(step())
    assert events[5].inputs == (1, 4)
    assert events[6].inputs == (1, 5)
    assert events[3].inputs == ()  # the plain Depend only orders it
    assert events[4].inputs == (3,)


def test_bookkeeping_can_be_kept():
    events = order(step(), keep_bookkeeping=True)
    assert [event.op for event in events].count("Depend") == 3
    assert [m.action or m.op for m in must_precede(events, events[-1])] == ["4F2", "Send", "Receive", "4B2"]


def test_untied_collectives():
    tied = order([f"%0(a) = {all_reduce()}", f"%1(b) = {all_reduce('%0')}", "Return(%1)"])
    untied = order(
        [f"%0(a) = {all_reduce()}", f"%1(b) = {all_reduce('%para2_y')}", "%2(c) = Add(%0, %1)", "Return(%2)"]
    )
    assert unforced(tied) == []
    assert [(a.index, b.index) for a, b in unforced(untied)] == [(0, 1)]


def test_peer_counts_inside_its_group():
    (event,) = order([f"%0(s) = {send(0, 1, group='pair')}", "Return(%0)"], groups={"pair": [2, 6]})
    assert (event.peer, event.ranks) == (6, (2, 6))
    (event,) = order([f"%0(s) = {send(0, 1, group='pair')}", "Return(%0)"])
    assert (event.peer, event.ranks) == (1, None)


def test_ranks_of_a_group_are_read():
    (event,) = order([f"%0(a) = {all_reduce(ranks='(1, 3)')}", "Return(%0)"])
    assert event.ranks == (1, 3)


def test_calls_are_followed():
    inner = graph(
        "1_f", [f"%0(r) = {all_reduce('%para8_a')}", "%1(m) = Mul(%0, %para9_b)", "Return(%1)"], "%para8_a, %para9_b"
    )
    events = order(
        [f"%0(s) = {send(0, 1)}", "%1(c) = call @1_f(%0, %para1_x)", f"%2(r) = {receive(1, 1, '%1')}", "Return(%2)"],
        inner,
    )
    assert [event.op for event in events] == ["Send", "AllReduce", "Mul", "Receive"]
    assert unforced(events) == []
    assert events[2].inputs == (1,)


def test_branches_without_communication_are_followed():
    one, two = (
        graph("1_a", ["%0(x) = Mul(%para8_v, %para8_v)", "Return(%0)"], "%para8_v"),
        graph("2_b", ["Return(%para9_v)"], "%para9_v"),
    )
    events = order(
        [
            "%0(s) = Switch(%para1_c, %para2_p, %para3_q)",
            "%1(c) = %0[@FuncUnion(@1_a, @2_b)](%para1_x)",
            "%2(z) = Neg(%1)",
            "Return(%2)",
        ],
        one,
        two,
    )
    assert [event.op for event in events] == ["Mul", "Neg"]


def test_communication_in_a_branch_is_refused():
    one, two = (
        graph("1_a", [f"%0(x) = {all_reduce('%para8_v')}", "Return(%0)"], "%para8_v"),
        graph("2_b", ["Return(%para9_v)"], "%para9_v"),
    )
    with pytest.raises(DryRunError, match="AllReduce .* in a branch or loop that depends on data"):
        order(["%1(c) = %para2_s[@FuncUnion(@1_a, @2_b)](%para1_x)", "Return(%1)"], one, two)


def test_final_graph_has_the_highest_number(tmp_path):
    for name in ("21_validate_0276.ir", "9_validate_0980.ir", "22_validate_0300.txt", "30_opt_9999.ir"):
        (tmp_path / name).touch()
    assert final_ir(tmp_path).name == "9_validate_0980.ir"
    with pytest.raises(DryRunError, match="no \\*_validate_\\*.ir in"):
        final_ir(tmp_path / "none")


def test_long_graph_is_read_in_seconds():
    length = 10_000
    lines = ["%0(v) = Neg(%para1_x)"]
    for number in range(1, length):
        makers = {0: send(number, 1, f"%{number - 1}"), 10: gate("0F0", f"%{number - 1}", "%para2_t")}
        lines.append(
            f"%{number}(v) = " + makers.get(number % 20, f"PrimFunc_Add(%{number - 1}, %{max(0, number - 7)})")
        )
    start = time.process_time()
    events = order([*lines, f"Return(%{length - 1})"])
    assert unforced(events) == []
    assert time.process_time() - start < 5  # seconds
    assert events[-1].before.bit_count() == len(marked(events)) == 2 * length // 20 - 1
