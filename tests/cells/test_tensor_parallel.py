"""T workers that share each stage train as one does; and what cannot be shared is refused."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from cells_case import INLINE, SEED, STEPS, TRANSPOSE, Case, layers_of, reference, relative_difference
from cells_jobs import run_ranks
from mindspore import nn

from hyperparallel import Layer, Runner, Transport, derive, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.gradients import share
from hyperparallel.cells.layer import build_layer, check_layers
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.tensor_parallel import Shard, TensorParallel, check_parts, join_parameter, slice_parameter
from hyperparallel.errors import ConfigError, ModelError

T = 2
TOLERANCE = 1e-5
EAGER = Case(TRANSPOSE, 1, micro_batches=1, vision=False, jit=False)
VARYING = Case(INLINE, 2, pad=8, evaluates=True)
CASES = [
    Case(INLINE, 1),
    EAGER,
    Case(TRANSPOSE, 2),
    VARYING,
    Case("zb(vision+llm)", 2),
    Case(INLINE, 1, data_parallel=2),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
PARTS = {
    f"{layer.name}.{local}": shard
    for layer in layers_of(CASES[0], TensorParallel(T))
    for local, shard in layer.sharded.items()
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Case name -> (facts, parameters before, parameters after) of every worker; one job for 2 workers, one for 4."""
    out = tmp_path_factory.mktemp("tensor_parallel")
    seen = {}
    for workers in sorted({case.workers for case in CASES}):
        cases = [case for case in CASES if case.workers == workers]
        (out / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
        worker = str(Path(__file__).parent / "cells_tensor_worker.py")
        run_ranks([worker, str(out / "cases.json"), str(T), str(out)], T * workers, out)
        for case in cases:
            seen[case.name] = [_load(out / f"{case.name}.{number}") for number in range(T * workers)]
    return seen


def _load(path):
    arrays = dict(np.load(f"{path}.npz"))
    before = {name.removeprefix("initial:"): value for name, value in arrays.items() if name.startswith("initial:")}
    after = {name: value for name, value in arrays.items() if not name.startswith("initial:")}
    return json.loads(Path(f"{path}.json").read_text()), before, after


def whole(workers, which):
    """Join the parts of each stage's T workers; yield (worker, name, whole parameter)."""
    for first in range(0, len(workers), T):
        stage = [workers[first + t][which] for t in range(T)]
        for name in stage[0]:
            parts = [values[name] for values in stage]
            yield first, name, join_parameter(parts, PARTS[name]) if name in PARTS else parts[0]


@pytest.mark.slow
@every_case
def test_losses_and_norms_equal_one_process(results, case):
    expected = reference(case.vision, case.llm, case.tied)
    for facts, _, _ in results[case.name]:
        np.testing.assert_allclose([r["loss"] for r in facts["results"]], expected.losses, rtol=TOLERANCE)
        np.testing.assert_allclose([r["grad_norm"] for r in facts["results"]], expected.norms, rtol=TOLERANCE)
        assert facts["results"] == results[case.name][0][0]["results"], "workers disagree"
        # Not once for each shard.
        assert all(r["metrics"]["samples"] == 8 for r in facts["results"])


@pytest.mark.slow
@every_case
def test_parameters_equal_one_process(results, case):
    expected = reference(case.vision, case.llm, case.tied)
    assert {name for _, name, _ in whole(results[case.name], 2)} == set(expected.final)
    for worker, name, value in whole(results[case.name], 1):
        np.testing.assert_array_equal(value, expected.initial[name], err_msg=f"{name} on worker {worker}")
    for worker, name, value in whole(results[case.name], 2):
        assert relative_difference(value, expected.final[name]) < TOLERANCE, (worker, name)


@pytest.mark.slow
@every_case
def test_copies_stay_equal_to_the_bit(results, case):
    """What is whole is equal on all workers that hold it, a part on all of its shard; and parts are not copies."""
    copies = {}
    for number, (facts, _, after) in enumerate(results[case.name]):
        topology = Topology(case.ranks, case.data_parallel, T)
        assert tuple(facts["place"]) == topology.coordinates(number)
        for name, value in after.items():
            name = "llm.embed.weight" if name == "llm.head.weight" else name
            key = (name, facts["place"][2]) if name in PARTS else name
            np.testing.assert_array_equal(value, copies.setdefault(key, value), err_msg=f"{name} on {number}")
    for name in PARTS:
        assert not np.array_equal(copies[name, 0], copies[name, 1]) or name.endswith("bias")


@pytest.mark.slow
def test_messages_and_sums_stay_on_one_shard(results):
    for case in CASES:
        for number, (facts, _, _) in enumerate(results[case.name]):
            everyone = list(range(T * case.workers))
            for step in facts["steps"]:
                assert all(peer % T == number % T for peer, _, _ in step["sends"])
                assert all(
                    ranks == everyone or {rank % T for rank in ranks} == {number % T} for ranks, _ in step["sums"]
                )


@pytest.mark.slow
def test_every_block_enters_and_leaves_twice_a_micro_batch(results):
    """Twice forward and twice backward; a forward that ran again would leave more often."""
    for facts, _, _ in results[EAGER.name]:
        # A block has one Enter, used twice, and a Leave for each of its two row-parallel projections; the first of the
        # three blocks is of the encoder, which is frozen.
        assert facts["reduces"] == {"Enter": [0, 2 * STEPS, 2 * STEPS], "Leave": [STEPS] * 6}


@pytest.mark.slow
def test_evaluate_gives_the_loss_of_the_step(results):
    for facts, _, _ in results[VARYING.name]:
        for evaluated, stepped in zip(facts["evaluated"], facts["results"], strict=True):
            assert {**evaluated, "grad_norm": 0} == {**stepped, "grad_norm": 0}


@pytest.mark.parametrize(
    ("shape", "shard", "parts"),
    [
        pytest.param((6,), Shard(0, (6,)), [[0, 1, 2], [3, 4, 5]], id="vector"),
        pytest.param((8,), Shard(0, (4, 2, 2)), [[0, 1, 4, 6], [2, 3, 5, 7]], id="fused"),
        pytest.param((2, 4), Shard(1, (4,)), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]], id="columns"),
    ],
)
def test_parts_of_a_parameter(shape, shard, parts):
    full = np.arange(np.prod(shape)).reshape(shape)
    cut = [slice_parameter(full, shard, index, 2) for index in range(2)]
    assert [part.tolist() for part in cut] == parts
    np.testing.assert_array_equal(join_parameter(cut, shard), full)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_join_to_the_whole(size):
    full = np.random.default_rng(0).standard_normal((3, 16, 2))
    for shard in (Shard(1, (16,)), Shard(1, (8, 4, 4))):
        parts = [slice_parameter(full, shard, index, size) for index in range(size)]
        np.testing.assert_array_equal(join_parameter(parts, shard), full)


@pytest.mark.parametrize(("blocks", "size"), [((4,), 2), ((3, 3), 2), ((6,), 4)])
def test_blocks_that_do_not_fit_a_parameter_are_refused(blocks, size):
    with pytest.raises(ModelError, match=r"shape \(6,\) cannot be cut into \d parts along axis 0"):
        slice_parameter(np.zeros(6), Shard(0, blocks), 0, size)


def test_parts_of_another_size_are_refused():
    with pytest.raises(ModelError, match=r"expected 2 parts of 3 each"):
        join_parameter([np.zeros(3), np.zeros(2)], Shard(0, (6,)))


@pytest.mark.parametrize(("size", "shard"), [(2, 2), (2, -1), (0, 0)])
def test_a_shard_that_does_not_exist_is_refused(size, shard):
    with pytest.raises(ConfigError, match=f"shard {shard} of {size} tensor-parallel workers does not exist"):
        TensorParallel(size, shard)


class Half(nn.Cell):
    """A matrix of which this worker has half, without any collective."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 2)

    def construct(self, x, *_):
        return self.dense(x)


def half(name, **more):
    sharded = {"dense.weight": Shard(0, (4,)), "dense.bias": Shard(0, (4,))}
    return Layer(name, "net", Half, **{"sharded": sharded, **more})


@pytest.mark.parametrize(
    ("sharded", "size", "words"),
    [
        ({"dense.weight": Shard(0, (4,))}, 2, None),
        ({"dense.weight": Shard(0, (4,))}, 1, "'dense.weight' holds 2 of 4 along axis 0; with T = 1 shards expected 4"),
        ({"dense.weight": Shard(0, (4,))}, 4, "holds 2 of 4 along axis 0; with T = 4 shards expected 1"),
        ({"weight": Shard(0, (4,))}, 2, "declares a shard 'weight', but has only dense.weight, dense.bias"),
    ],
)
def test_a_cell_that_does_not_hold_the_declared_part_is_refused(sharded, size, words):
    cell = build_layer(half("net.a"), 0)
    if words is None:
        check_parts("net.a", cell, sharded, size)
        return
    with pytest.raises(ModelError) as error:
        check_parts("net.a", cell, sharded, size)
    assert "net.a" in str(error.value) and words in str(error.value)


def test_the_runner_refuses_layers_of_another_t():
    layers = [half("net.a", columns=("x",)), half("net.b")]
    with pytest.raises(ModelError, match="list the model with the job's own TensorParallel"):
        Runner(derive("1f1b(net)", model_spec(layers), 1, 1), layers, jit=False)


def test_tied_ends_are_cut_alike():
    tied = {"dense.weight": "net.a.dense.weight"}
    check_layers([half("net.a"), half("net.b", tied=tied)])
    with pytest.raises(ModelError, match="cut over the shards differently"):
        check_layers([half("net.a"), half("net.b", tied=tied, sharded={})])


@pytest.mark.parametrize("data_parallel", [1, 2])
@pytest.mark.parametrize("names", [None, {"dense.weight": "net.a.dense.weight", "dense.bias": "net.a.dense.bias"}])
def test_a_part_is_counted_by_each_shard_and_a_whole_by_one(data_parallel, names):
    # Where the names are listed, that of the layer has nothing to do with them.
    name, sharded = "net.a" if names is None else "other", {"dense.weight": Shard(0, (4,))}
    layers = [half(name, columns=("x",), sharded=sharded, parameters=names), half("net.b", sharded={})]
    plan = derive("1f1b(net)", model_spec(layers), 2, 1)
    topology = Topology(2, data_parallel, T)
    counted = []
    for worker in range(topology.workers):
        rank, _, shard = topology.coordinates(worker)
        slab = Slab(layers, (rank, rank + 1), SEED, backward=True, sends_gradient=False, jit=False)
        for one in share(plan, layers, {rank: slab}, topology, worker):
            assert one.ranks == topology.replicas((rank,), shard) and worker in one.ranks
            counted += [one.name] * (one.counted_by == worker)
    assert sorted(counted) == [
        "net.a.dense.bias",
        *["net.a.dense.weight"] * T,
        "net.b.dense.bias",
        "net.b.dense.weight",
    ]


def test_a_transport_knows_its_place_and_refuses_another_size():
    assert Transport(5, 8).place(Topology(2, 2, 2)) == (1, 0, 1)
    assert Transport(1, 2).tensor_parallel(Topology(2, 1, 1)) == TensorParallel()
    with pytest.raises(ConfigError) as error:
        Transport(0, 4).place(Topology(2, 2, 2))
    words = "2 ranks x 2 replicas x 2 shards (P x D x T) = 8 workers, the job has 4; start it with msrun --worker_num=8"
    assert words in str(error.value)
