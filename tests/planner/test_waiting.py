"""Features that wait for the backbone: O(P) with `fill`, O(M) with `warmup`; by count, and by bytes of rank 0."""

import pytest

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cost import PartCost, costs_from_parts
from hyperparallel.cost.memory_bytes import memory_curve
from hyperparallel.cost.memory_plan import plan_stages
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.planner import Settings, plan_line
from hyperparallel.planner.line import problem_of
from hyperparallel.planner.list_plan import warmup
from hyperparallel.planner.live import most_waiting
from hyperparallel.planner.play import Graph, play

RANKS = 4
WARMUP, FILL = "transpose(vision) >> 1f1b(llm)", "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
FEATURE = 7
TRAINED = LayerBytes(weights=10, trained=10, largest=6, constants=3, saved=100, forward=0, backward=40)
FROZEN = LayerBytes(weights=10, trained=0, largest=0, constants=3, saved=0, forward=50, backward=0)


def given(encode, trained):
    """Return the model, and what prices its plans; the backbone takes 4 forward and 8 backward."""
    parts = {"vision": PartCost(encode, 2 * encode * trained), "llm": PartCost(4, 8)}
    model = ModelSpec.of({"vision": 1, "llm": RANKS}, set() if trained else {"vision"})
    return model, lambda plan: costs_from_parts(plan, parts)


def filled(encode, trained, micro_batches):
    model, price = given(encode, trained)
    return plan_line(FILL, model, RANKS, micro_batches, price, Settings(engine="list"))


def waiting_in_warmup(encode, trained, micro_batches):
    model, price = given(encode, trained)
    base = derive(WARMUP, model, RANKS, micro_batches)
    graph = Graph(problem_of(base, price(base), choose_owners=True))
    plan = warmup(graph)
    return most_waiting(graph, plan.owners, play(plan.rows, graph.links(plan.owners), graph.duration))


def feature_bytes(plan, trained):
    """Return the most bytes of features, and of their gradients, that rank 0 holds at a time."""
    layers = [TRAINED if trained else FROZEN, *[TRAINED] * RANKS]
    stages, batch = plan_stages(plan, layers, [FEATURE] * RANKS + [0], [{}] * len(layers))
    return max(live.features for _, live in memory_curve(plan, 0, stages, batch))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("encode", [4.0, 12.0])  # te / x = 1/3 and 1
def test_what_waits_does_not_grow_with_the_micro_batches(encode, trained):
    most = [filled(encode, trained, count).certificate.waiting for count in (16, 32, 64)]
    assert max(most) <= 3 * RANKS and len(set(most)) == 1
    paper = [waiting_in_warmup(encode, trained, count) for count in (16, 32, 64)]
    assert [count - 1 for count in (16, 32, 64)] == paper  # all but the one that is used at once


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("encode", [4.0, 12.0])
def test_the_same_in_bytes_of_rank_0(encode, trained):
    few, many = (feature_bytes(filled(encode, trained, count).plan, trained) for count in (16, 32))
    assert FEATURE <= few == many <= (3 * RANKS + 1) * FEATURE  # one leaves while the next ones wait
    model, _ = given(encode, trained)
    paper = [feature_bytes(derive(WARMUP, model, RANKS, count), trained) for count in (16, 32)]
    assert paper == [16 * FEATURE, 32 * FEATURE]


@pytest.mark.parametrize("encode", [4.0, 12.0])
def test_a_frozen_encoder_holds_no_more_for_many_micro_batches(encode):
    assert feature_bytes(filled(encode, False, 64).plan, False) == feature_bytes(filled(encode, False, 16).plan, False)
