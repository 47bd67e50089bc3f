"""Plans that MindSpore's engine takes compile for Ascend in an order that works; others are refused with a reason."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
from cells_annotate import DONE, columns_for, compile_all, layers_for, plan_for
from cells_case import INLINE, Case, layers_of
from mindspore import nn

from hyperparallel import ModelSpec, derive, model_spec
from hyperparallel.algebra.program import B, I, W
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.annotate import check_annotate, check_net, stamp
from hyperparallel.cells.annotate_order import beside_plan, engine_order
from hyperparallel.dryrun import Event, check_ranks, comm_only, final_ir, gist, read_order
from hyperparallel.errors import ConfigError, DataError, HyperParallelError, ModelError, PlanError

P, D = 2, 2
V = "zb(vision+llm, fold=v)"
# Line -> M, and the workers to compile: both stages of one replica, or all.
LINES = {
    INLINE: (2, [0, 1, 2, 3]),
    "gpipe(vision+llm)*2": (2, [0, 2]),
    "1f1b(vision+llm)*2": (2, [0, 2]),
    V: (4, [0, 2]),
}


class Compiled(NamedTuple):
    """What one line became."""

    own: dict[int, int]
    """Worker -> number of trainable parameters of its stage."""
    events: list[list[Event]]
    """By worker; empty where it was not compiled."""
    orders: list
    """By rank, of replica 0."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, Compiled]:
    """Compile all lines."""
    found = {}
    for line, (micro_batches, workers) in LINES.items():
        graphs = tmp_path_factory.mktemp("graphs")
        runs = compile_all(line, P, micro_batches, D, graphs, workers)
        for run in runs:
            assert run.passed, f"{line}, worker {run.rank}: {gist(run.output)}"
        events = [read_order(final_ir(graphs / f"rank_{w}")) if w in workers else [] for w in range(P * D)]
        own = {run.rank: int(run.output.split(DONE)[-1]) for run in runs}
        orders = [engine_order(graphs / f"rank_{rank * D}", rank, P) for rank in range(P)]
        found[line] = Compiled(own, events, orders)
    return found


def messages(events: list[Event]) -> list[Event]:
    return [event for event in events if event.op in ("Send", "Receive")]


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_messages_meet_and_nothing_lets_them_change_places(compiled, line):
    events = compiled[line].events
    if all(events):
        assert check_ranks([comm_only(own) for own in events]) == []
    assert check_ranks([messages(own) for own in events]) == []
    for own in events:
        sent = messages(own)
        assert all(then.must_follow(first) for first, then in zip(sent, sent[1:], strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_each_rank_runs_what_the_plan_runs_there(compiled, line):
    plan = plan_for(line, P, LINES[line][0])
    for program, order in zip(plan.programs, compiled[line].orders, strict=True):
        merged = Counter()
        for action in order:
            # The engine splits a backward only where that helps it.
            merged.update([action] if action.kind != B or line != V else [action._replace(kind=k) for k in (I, W)])
        assert merged == Counter(program)


@pytest.mark.slow
def test_where_the_engine_computes_as_planned(compiled):
    same = {}
    for line, (micro_batches, _) in LINES.items():
        plan, orders = plan_for(line, P, micro_batches), compiled[line].orders
        ours = [[action for action in program if action.is_compute] for program in plan.programs]
        same[line] = ours == [[action for action in order if action.is_compute] for order in orders]
        assert f"rank 1   plan     {' '.join(map(str, ours[1]))}\n" in beside_plan(plan, orders)
    assert same == {INLINE: True, "gpipe(vision+llm)*2": True, "1f1b(vision+llm)*2": True, V: False}


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_stage_updates_its_parameters_with_gradients_of_both_replicas(compiled, line):
    case = compiled[line]
    for worker, own in case.own.items():
        events = case.events[worker]
        # Parameter and two moments are assigned, and the sum of the gradients is cleared. The last stage does so too
        # with its copy of a tied table, which it does not read: the first stage sends it the table every step.
        copies = 1 if line == INLINE and worker >= D else 0
        assigned = [event for event in events if event.op == "Assign" and "_Mirror" not in event.scope]
        assert len(assigned) == 4 * (own + copies) > 0
        reduced = [event for event in events if event.op == "AllReduce" and "_Mirror" in event.scope]
        assert len(reduced) == own and {event.ranks for event in reduced} == {Topology(P, D).replicas((worker // D,))}
        # The norm over all stages, for clipping.
        assert [event for event in events if event.op == "AllReduce" and event.group == "hccl_world_group"]


REFUSED = [
    ("transpose(vision) >> 1f1b(llm)", 4, "region 1, transpose(vision), is Replicated"),
    ("1f1b(vision) >> gpipe(llm)", 4, "region 2, gpipe(llm), has another skeleton than 1f1b(vision)"),
    ("wave(vision+llm)", 4, "region 1, wave(vision+llm), has no scheduler of its own there; there are some for 1f1b"),
    ("zb(vision+llm)", 4, "has no scheduler of its own there"),
    ("gpipe(vision+llm)", 4, "makes 1 region; gpipe wants at least 2"),
    ("zb(vision+llm, fold=v)*2", 4, "makes 4 regions; zero_bubble_v wants exactly 2"),
    (V, 3, "runs M = 3 micro-batches; zero_bubble_v wants M >= 2P = 4"),
    (INLINE, 1, "runs M = 1 micro-batches; 1f1b wants M >= P = 2"),
]


@pytest.mark.parametrize(("line", "micro_batches", "reason"), REFUSED)
def test_a_plan_that_cannot_be_expressed(line, micro_batches, reason):
    plan = derive(line, ModelSpec.of({"vision": 4, "llm": 4}), 2, micro_batches)
    with pytest.raises(PlanError) as error:
        check_annotate(plan)
    assert reason in str(error.value)
    assert str(error.value).endswith("run.mode: graph or stepwise runs this plan as it is")


def test_one_rank_and_a_rank_with_nothing_to_train():
    with pytest.raises(PlanError, match="P = 1 is no pipeline"):
        check_annotate(derive("1f1b(llm)", ModelSpec.of({"llm": 4}), 1, 4))
    frozen = ModelSpec.of({"vision": 2, "llm": 2}, frozen={"vision"})
    with pytest.raises(PlanError, match="leaves rank 0 with frozen layers only"):
        check_annotate(derive("1f1b(vision+llm, slabs=[2,2])", frozen, 2, 4))


@pytest.mark.parametrize(
    ("line", "scheduler", "interleave", "lazy_inline", "segments"),
    [
        (INLINE, "1f1b", False, False, False),
        ("1f1b(vision+llm)*3", "1f1b", True, True, False),
        ("1f1b(vision) >> 1f1b(llm)", "1f1b", True, True, False),
        ("gpipe(vision+llm)*2", "gpipe", True, True, False),
        (V, "zero_bubble_v", True, True, True),
    ],
)
def test_the_table(line, scheduler, interleave, lazy_inline, segments):
    engine = check_annotate(derive(line, ModelSpec.of({"vision": 4, "llm": 4}), 2, 4))
    found = (engine.scheduler, engine.interleave, engine.lazy_inline, engine.segments)
    assert found == (scheduler, interleave, lazy_inline, segments)


@pytest.mark.parametrize(
    ("line", "stages", "segments"),
    [
        (INLINE, [0, 0, 0, 1], None),
        ("1f1b(vision+llm)*2", [0, 1, 0, 1], None),
        (V, [0, 1, 1, 0], [0, 0, 1, 1]),
    ],
)
def test_stamp(line, stages, segments):
    cells = [nn.ReLU() for _ in range(4)]
    stamp(derive(line, ModelSpec.of({"vision": 2, "llm": 2}), 2, 4), cells)
    assert [cell.pipeline_stage for cell in cells] == stages
    if segments is not None:
        assert [cell.pipeline_segment for cell in cells] == segments


def refused_net(kind: type[HyperParallelError], message: str, line=INLINE, topology=None, layers=None, columns=None):
    layers = layers_for(line, P) if layers is None else layers
    plan = derive(line, model_spec(layers), P, 4)
    with pytest.raises(kind, match=message):
        check_net(plan, layers, columns or columns_for(1), topology or Topology(P))


def test_layers_and_layouts_that_the_engine_does_not_take():
    pair = [replace(layers_for(INLINE, P)[0], carry=lambda shapes: [(1,), (1,)]), *layers_for(INLINE, P)[1:]]
    refused_net(ModelError, "layer 'vision.patch' hands on 2 tensors", layers=pair)
    refused_net(ModelError, "ties 'weight' to 'llm.embed.weight'", line=V, layers=layers_of(Case(V, P)))
    refused_net(ConfigError, "parallel.tensor_parallel is 2", topology=Topology(P, 1, 2))
    odd = {**columns_for(1), "input_ids": columns_for(1)["input_ids"]._replace(shape=(3, 32))}
    refused_net(DataError, r"'input_ids' .* has the shape \(3, 32\); D = 2", topology=Topology(P, 2), columns=odd)
    check_net(plan_for(INLINE, P, 4), layers_for(INLINE, P), columns_for(2), Topology(P, 2))
