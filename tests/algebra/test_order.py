import pytest
from algebra_cases import LINES, plan_of, plans, quick
from algebra_machine import nodes_of, path_of
from hypothesis import given

from hyperparallel.algebra import order
from hyperparallel.algebra.order import Bwd, Coll, DpReduce, Fwd, Loss, StepBarrier, WeightGrad

EVENTS = {"F": Fwd, "B": Bwd, "I": Bwd, "W": WeightGrad}


def projected(plan, rank):
    """A rank's compute as events, with each loss right after its last forward."""
    last = {mb: path_of(plan, mb)[-1] for mb in range(plan.micro_batches)}
    for stage, kind, mb in plan.compute[rank]:
        yield EVENTS[kind](stage // plan.ranks, rank, mb)
        if kind == "F" and stage == last.get(mb):
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
    activations = {c for source, c, kind in order(plan).edges if kind == "Activation" and c in colls}
    assert {(c.seam[0], "SEND_F", c.mb) for c in activations} | {
        (c.seam[1], "SEND_B", c.mb) for c in colls - activations
    } == sends
    assert len(colls) == len(sends)
    names = {(True, False): "Gather", (False, True): "Scatter", (False, False): "Send"}
    mirror = {"Gather": "Scatter", "Scatter": "Gather", "Send": "RecvGrad"}
    for coll in colls:
        name = names[tuple(plan.regions[stage // plan.ranks].owner is not None for stage in coll.seam)]
        assert coll.comm == (name if coll in activations else mirror[name])


SEAMS = {  # line, messages over the seam forward and backward, rank of each loss
    "to a transposed region": (
        "1f1b(vision) >> transpose(llm)",
        {("Scatter", (1, 2), 0), ("Gather", (1, 2), 0), ("Scatter", (1, 2), 2), ("Gather", (1, 2), 2)},
        [0, 1, 0],
    ),
    "through one": (
        "1f1b(vision) >> transpose(audio, owner=[1,1,1]) >> 1f1b(llm)",
        {(comm, (3, 4), mb) for comm in ("Gather", "Scatter") for mb in range(3)},
        [1, 1, 1],
    ),
    "of a fold": ("wave(llm)", set(), [0, 0, 0]),
    "of chunks": ("1f1b(llm)*2", {(comm, (1, 2), mb) for comm in ("Send", "RecvGrad") for mb in range(3)}, [1, 1, 1]),
}


@pytest.mark.parametrize("case", SEAMS)
def test_a_seam_has_a_message_where_its_ends_are_two_ranks(case):
    line, messages, losses = SEAMS[case]
    events = order(plan_of(line, 2, 3)).events
    over = [e for e in events if isinstance(e, Coll) and e.seam[0] // 2 != e.seam[1] // 2]
    assert {(e.comm, e.seam, e.mb) for e in over} == messages
    assert sorted((e.mb, e.rank) for e in events if isinstance(e, Loss)) == list(enumerate(losses))


def test_a_split_backward_sends_after_i_and_reduces_after_w():
    edges = set(order(plan_of("zb(llm)", 2, 1)).edges)
    back, grad = Coll("RecvGrad", (0, 1), 0), Bwd(0, 1, 0)
    assert {edge for edge in edges if WeightGrad(0, 1, 0) in edge or grad in edge} == {
        (Loss(1, 0), grad, "Turnaround"),
        (Fwd(0, 1, 0), grad, "Sequence"),
        (grad, back, "Gradient"),
        (grad, WeightGrad(0, 1, 0), "Split"),
        (grad, WeightGrad(0, 1, 0), "Sequence"),
        (WeightGrad(0, 1, 0), DpReduce(0, "DataGroup", 1), "Accumulate"),
    }


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
def test_a_reduce_waits_for_the_weight_gradient_of_every_micro_batch(line):
    plan = plan_of(line, 3, 5)
    waits = [(a, b) for a, b, kind in order(plan).edges if kind == "Accumulate"]
    split = {event for event in order(plan).events if isinstance(event, WeightGrad)}
    whole = {e for e in order(plan).events if isinstance(e, Bwd)} - {Bwd(e.region, e.rank, e.mb) for e in split}
    assert {source for source, _ in waits} == split | whole
    assert all((a.region, a.rank) == (b.region, b.rank) for a, b in waits)
    assert len(waits) == len(split) + len(whole) == len(nodes_of(plan))


def test_a_frozen_region_that_passes_gradients_accumulates_nothing():
    waits = [
        b.region for _, b, kind in order(plan_of("zb(vision) >> zb(llm)", 2, 2, ("llm",))).edges if kind == "Accumulate"
    ]
    assert waits == [0] * 4
