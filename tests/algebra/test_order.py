import pytest
from algebra_cases import LINES, plan_of, plans, quick
from hypothesis import given

from hyperparallel.algebra import order
from hyperparallel.algebra.order import Bwd, Coll, DpReduce, Fwd, Loss, StepBarrier


def projected(plan, rank):
    """A rank's compute as Fwd and Bwd events, with each loss right after its last forward."""
    last = (len(plan.regions) - 1, plan.ranks - 1)
    for stage, kind, mb in plan.compute[rank]:
        event = (Fwd if kind == "F" else Bwd)(stage // plan.ranks, rank, mb)
        yield event
        if kind == "F" and (event.region, rank) == last:
            yield Loss(rank, mb)


@quick
@given(plans(most_ranks=5, most_micro_batches=8))
def test_the_graph_is_acyclic_and_projects_to_what_each_rank_runs(plan):
    graph = order(plan)
    place = {event: index for index, event in enumerate(graph.topological)}
    assert set(place) == set(graph.events)
    assert all(place[source] < place[target] for source, target, _ in graph.edges)
    for rank in range(plan.ranks):
        assert graph.nodes(rank) == tuple(projected(plan, rank))
    assert graph.topological[-1] == StepBarrier()


@quick
@given(plans())
def test_messages_of_the_graph_are_the_sends_of_the_programs(plan):
    sends = {a for program in plan.programs for a in program if a.kind.startswith("SEND")}
    colls = {event for event in order(plan).events if isinstance(event, Coll)}
    forward = {(a.stage, a.mb) for a in sends if a.kind == "SEND_F"}
    backward = {(a.stage, a.mb) for a in sends if a.kind == "SEND_B"}
    assert {(c.seam[0], c.mb) for c in colls if c.comm in ("Gather", "Send")} == forward
    assert {(c.seam[1], c.mb) for c in colls if c.comm in ("Scatter", "RecvGrad")} == backward


def test_the_edges_of_one_micro_batch():
    edges = set(order(plan_of("transpose(vision, owner=[1]) >> 1f1b(llm)", 2, 1)).edges)
    gather, scatter = Coll("Gather", (1, 2), 0), Coll("Scatter", (1, 2), 0)
    send, back = Coll("Send", (2, 3), 0), Coll("RecvGrad", (2, 3), 0)
    encode, first, last = Fwd(0, 1, 0), Fwd(1, 0, 0), Fwd(1, 1, 0)
    reduces = {rank: DpReduce(1, "DataGroup", rank) for rank in (0, 1)}
    copies = {rank: DpReduce(0, "ReplicaGroup", rank) for rank in (0, 1)}
    assert edges == {
        (encode, gather, "Activation"),
        (gather, first, "Activation"),
        (first, send, "Activation"),
        (send, last, "Activation"),
        (last, Loss(1, 0), "Turnaround"),
        (Loss(1, 0), Bwd(1, 1, 0), "Turnaround"),
        (Bwd(1, 1, 0), back, "Gradient"),
        (back, Bwd(1, 0, 0), "Gradient"),
        (Bwd(1, 0, 0), scatter, "Gradient"),
        (scatter, Bwd(0, 1, 0), "Gradient"),
        (first, Bwd(1, 0, 0), "Sequence"),
        (encode, last, "Sequence"),
        (last, Bwd(1, 1, 0), "Sequence"),
        (Bwd(1, 1, 0), Bwd(0, 1, 0), "Sequence"),
        (Bwd(0, 1, 0), copies[1], "Accumulate"),
        (Bwd(1, 0, 0), reduces[0], "Accumulate"),
        (Bwd(1, 1, 0), reduces[1], "Accumulate"),
        *((reduce, StepBarrier(), "Sequence") for group in (reduces, copies) for reduce in group.values()),
        (Loss(1, 0), StepBarrier(), "Sequence"),
    }


@pytest.mark.parametrize("line", LINES)
def test_a_reduce_waits_for_every_backward_of_its_stage(line):
    plan = plan_of(line, 3, 5)
    waits = {(a, b) for a, b, kind in order(plan).edges if kind == "Accumulate"}
    backwards = {event for event in order(plan).events if isinstance(event, Bwd)}
    assert {source for source, _ in waits} == backwards
    assert all((a.region, a.rank) == (b.region, b.rank) for a, b in waits)
    assert len(waits) == len(backwards)
