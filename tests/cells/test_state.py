"""The state by global names: who writes what, what fits, and that both runners take it."""

import logging
from collections import Counter
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
import pytest
from cells_case import FILL, GPIPE, INLINE, SEED, SETTINGS, TRANSPOSE, Case, layers_of, plan_of
from graph_case import columns_of, static_batch

from hyperparallel import Runner, Transport
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.state import arrays_to_write, check_fits, go_on_from, load, state_of, updates_of
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.errors import CheckpointError
from hyperparallel.tensors import FIRST, MOMENTS, SECOND, Shard, join_parameter, slice_parameter


@dataclass
class InMemory:
    """Tensors as a checkpoint would give them."""

    whole: dict[str, np.ndarray]
    where: str = "here"
    reads: list[str] = field(default_factory=list)

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.whole.items()}

    def read(self, name, shard, index, size):
        self.reads.append(name)
        return self.whole[name] if shard is None else slice_parameter(self.whole[name], shard, index, size)


def runner_of(case, worker=0, shards=1, seed=SEED):
    """Build what one worker of a job holds; no job is needed as long as nothing runs."""
    topology = Topology(case.ranks, case.data_parallel, shards)
    shard = topology.coordinates(worker)[2]
    layers = layers_of(case, TensorParallel(shards, shard, "shards") if shards > 1 else TensorParallel())
    return Runner(
        plan_of(case, layers),
        layers,
        transport=Transport(worker, topology.workers),
        data_parallel=case.data_parallel,
        tensor_parallel=shards,
        optimizer=SETTINGS,
        seed=seed,
        jit=case.jit,
    )


def written(runners):
    """Join what all workers write; refuse what is written twice."""
    parts = {}
    for runner in runners:
        for name, (value, shard) in arrays_to_write(runner).items():
            assert shard is not None or name not in parts, f"{name} is written twice"
            parts.setdefault(name, (shard, []))[1].append(value.copy())
    return {
        name: values[0] if shard is None else join_parameter(values, shard) for name, (shard, values) in parts.items()
    }


ALONE = Case(INLINE, 1, jit=False)


@pytest.fixture(scope="module")
def whole():
    """The state of a runner alone, with moments that are not zero."""
    return draw(written([runner_of(ALONE)]))


def draw(tensors, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(value.shape).astype(np.float32) for name, value in tensors.items()}


def test_names(whole):
    weights = {name for name in whole if not name.startswith(MOMENTS)}
    layers = layers_of(ALONE)
    held = {p for slab in runner_of(ALONE).slabs.values() for p in (one.name for one in slab.chain.get_parameters())}
    assert weights == held - {"llm.head.weight"} and "llm.embed.weight" in weights
    assert set(whole) == weights | {prefix + name for name in weights for prefix in (FIRST, SECOND)}
    assert {name.rsplit(".", 2)[0] for name in weights} >= {layer.name for layer in layers if "blocks" in layer.name}


LAYOUTS = {
    "P=4": (Case(TRANSPOSE, 4, jit=False), 1),
    "P=2, D=2": (Case(GPIPE, 2, data_parallel=2, jit=False), 1),
    "P=2, T=2": (Case(TRANSPOSE, 2, jit=False), 2),
    "filled, interleaved": (Case(FILL.replace("1f1b(llm)", "1f1b(llm)*2"), 2, jit=False), 1),
    "folded": (Case("wave(vision+llm)", 2, jit=False), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tensor_is_written_by_one_worker_and_goes_to_every_copy(whole, layout):
    case, shards = LAYOUTS[layout]
    runners = [runner_of(case, worker, shards) for worker in range(case.workers * shards)]
    for runner in runners:
        source = InMemory(whole)
        check_fits(runner, source)
        load(runner, source)
        assert max(Counter(source.reads).values()) == 1
        tied = [one for one in state_of(runner) if "llm.embed.weight" in one.name]
        for one in tied:
            for copy in one.copies:
                np.testing.assert_array_equal(copy.asnumpy(), whole[one.name])
    assert any(one.shard for one in state_of(runners[0])) is (shards > 1)
    again = written(runners)
    assert again.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_the_lowest_holder_writes():
    case = Case(TRANSPOSE, 2, data_parallel=2, jit=False)
    names = [set(arrays_to_write(runner_of(case, worker))) for worker in range(4)]
    assert not names[1] and not names[3], "replica 1 has nothing of its own"
    # The encoder is on both ranks, the tied table on both ends of the backbone.
    assert {"vision.merger.up.weight", "llm.embed.weight"} & names[2] == set()
    assert "llm.embed.weight" in names[0] and any(name.startswith("vision.") for name in names[0])
    assert any(name.startswith("llm.blocks.1.") for name in names[2])


def test_moments_belong_to_their_weights():
    """Matrices and vectors are in groups of their own in the optimizer, in another order than the names."""
    runner = runner_of(ALONE)
    shapes = {one.name: one.copies[0].shape for one in state_of(runner)}
    for name, shape in shapes.items():
        assert shape == shapes[name.removeprefix(FIRST).removeprefix(SECOND)], name


def test_what_is_frozen_has_no_moments(whole):
    runner = runner_of(Case(INLINE, 1, vision=False, jit=False))
    names = {one.name for one in state_of(runner)}
    assert any(name.startswith("vision.") for name in names)
    assert not any(name.startswith((FIRST + "vision.", SECOND + "vision.")) for name in names)
    check_fits(runner, InMemory(whole))  # what was trained and now is frozen leaves its moments behind
    load(runner, InMemory(whole))
    assert_held(runner, whole)


def test_what_was_frozen_starts_its_moments_at_zero(whole, caplog):
    stored = {
        name: value for name, value in whole.items() if not name.startswith((FIRST + "vision", SECOND + "vision"))
    }
    runner = runner_of(ALONE)
    load(runner, InMemory(whole))
    with caplog.at_level(logging.WARNING):
        load(runner, InMemory(stored))
    assert_held(runner, {name: stored.get(name, np.zeros_like(value)) for name, value in whole.items()})
    count = sum(name.startswith(FIRST + "vision.") for name in whole)
    assert [record.getMessage() for record in caplog.records] == [
        f"here has no optimizer state of vision.blocks.0.down.bias, vision.blocks.0.down.weight, "
        f"vision.blocks.0.norm1.beta and {count - 3} more, frozen when it was saved; it starts at zero"
    ]


def assert_held(runner, expected):
    for one in state_of(runner):
        for copy in one.copies:
            np.testing.assert_array_equal(copy.asnumpy(), expected[one.name], err_msg=one.name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"llm.embed.weight": None}, "here does not have llm.embed.weight, which the model has", id="missing"
        ),
        pytest.param(
            {"llm.embed.weight": np.zeros((16, 25))},
            r"llm.embed.weight has the shape \(16, 25\), the model's has \(16, 24\)",
            id="shape",
        ),
        pytest.param(
            {FIRST + "llm.embed.weight": np.zeros(3)},
            r"optimizer.first.llm.embed.weight has the shape \(3,\)",
            id="moment",
        ),
        pytest.param({"audio.x": np.zeros(1)}, "here has audio.x, which the model has not; give", id="no such layer"),
        pytest.param({"llm.embed.bias": np.zeros(1)}, "here has llm.embed.bias, which the model has not", id="extra"),
        pytest.param(
            {FIRST + "llm.embed.bias": np.zeros(1)}, "here has optimizer.first.llm.embed.bias, which", id="extra moment"
        ),
        pytest.param(
            {"llm.head.weight": np.zeros((16, 24))},
            r"has not \(llm.head.weight is tied to llm.embed.weight here, which is stored once, under that name\)",
            id="tied",
        ),
    ],
)
def test_what_does_not_fit_is_named(whole, change, message):
    stored = {name: value for name, value in {**whole, **change}.items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        check_fits(runner_of(ALONE), InMemory(stored))


def test_each_worker_looks_at_the_names_of_its_own_layers(whole):
    case = Case(INLINE, 2, jit=False)
    stored = {**whole, "llm.head.bias": np.zeros(1)}
    check_fits(runner_of(case, 0), InMemory(stored))
    with pytest.raises(CheckpointError, match="has llm.head.bias"):
        check_fits(runner_of(case, 1), InMemory(stored))


def test_shapes_are_those_of_the_whole_where_shards_share():
    held = {one.name: one for one in state_of(runner_of(Case(INLINE, 1, jit=False), 1, shards=2))}
    down = held["llm.blocks.0.down.weight"]
    assert (down.shape, down.copies[0].shape, down.shard) == ((24, 32), (24, 16), Shard(1, (32,)))
    assert down.writer == 1 and held["llm.blocks.0.norm1.weight"].writer == 0


def losses(runner, first, last, batch):
    return [runner.step(batch(step, runner)).loss for step in range(first, last)]


@pytest.fixture
def graph_mode():
    """Let Cells be graphs, as a job of the graph runner does; back to what the other tests have afterwards."""
    before = ms.get_context("mode")

    def switch(on):
        ms.set_context(mode=ms.GRAPH_MODE if on else before)

    yield switch
    switch(False)


@pytest.mark.slow
def test_runners_go_on_from_each_other(graph_mode):
    case = Case(INLINE, 1, micro_batches=2)
    topology = Topology(1)

    def padded(step, _):
        return static_batch(step, case, 0)

    def copy(source, target):
        stored = InMemory(written([source]))
        check_fits(target, stored)
        load(target, stored)
        go_on_from(target, source.step_number, updates_of(source))

    stepwise = runner_of(case)
    losses(stepwise, 0, 2, padded)
    graph_mode(True)
    layers = layers_of(case)
    graph = GraphRunner(
        plan_of(case, layers), layers, columns_of(case), topology=topology, optimizer=SETTINGS, seed=SEED + 1
    )
    graph.step(padded(0, graph))  # compiled before anything is loaded
    copy(stepwise, graph)
    assert (graph.step_number, graph.updates) == (2, 2)
    graph_mode(False)
    expected = losses(stepwise, 2, 5, padded)
    graph_mode(True)
    np.testing.assert_allclose(losses(graph, 2, 4, padded), expected[:2], rtol=1e-5)
    graph_mode(False)
    fresh = runner_of(case, seed=SEED + 2)
    copy(graph, fresh)
    assert (fresh.step_number, fresh.optimizer.updates) == (4, 4)
    np.testing.assert_allclose(losses(fresh, 4, 5, padded), expected[2:], rtol=1e-5)


def test_updates_and_steps_are_counted_apart():
    runner = runner_of(ALONE)
    go_on_from(runner, step=7, updates=5)
    assert (runner.step_number, updates_of(runner)) == (7, 5)
    frozen = runner_of(Case(INLINE, 1, vision=False, llm=False, jit=False))
    go_on_from(frozen, step=7, updates=5)
    assert updates_of(frozen) == 5
