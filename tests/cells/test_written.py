"""Parameters that a forward writes: as in one process, or refused."""

import numpy as np
import pytest
from cells_writers import Average, Codebook, Counter, EvalCounter, Groups, Norm, writer_batch, writer_layers
from mindspore import Tensor

from hyperparallel import Runner, derive, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.layer import build_layer
from hyperparallel.cells.own_slabs import build_slabs
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.written import ForwardWrites
from hyperparallel.errors import ModelError

INLINE, TRANSPOSE = "1f1b(enc+net)", "transpose(enc) >> 1f1b(net)"


def runner_of(kind, line=INLINE, trainable=True, ranks=1, **options):
    layers = writer_layers(kind, trainable)
    return Runner(derive(line, model_spec(layers), ranks, 4), layers, **options)


def writes_of(kind, line, ranks, topology=None, recompute=()):
    """What a rank of a larger job would say of its first forward, without the job."""
    layers = writer_layers(kind)
    plan = derive(line, model_spec(layers), ranks, 4)
    slabs = build_slabs(plan, layers, 0, seed=0, jit=False, tensor_parallel=1)
    return slabs[0], ForwardWrites(plan, slabs, topology or Topology(ranks), frozenset(recompute))


def forward(slab, writes, train=True, numbers=None):
    with writes.watch(0, train, numbers):
        slab.forward(slab.inputs(None, writer_batch()[0], 0), train)


def test_statistics_are_those_of_a_plain_loop_over_the_micro_batches():
    runner = runner_of(Norm)
    cell = build_layer(runner.layers[0], 0).set_train(True)
    for mb in writer_batch():
        cell(Tensor(mb["x"]))
    runner.step(writer_batch())
    for name in ("moving_mean", "moving_variance"):
        expected = getattr(cell.norm, name).asnumpy()
        np.testing.assert_allclose(runner.parameters()[f"enc.a.norm.{name}"], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("line", [INLINE, "gpipe(enc+net)", TRANSPOSE])
def test_on_one_rank_statistics_are_those_of_one_process(line):
    reference, runner = runner_of(Norm, jit=False), runner_of(Norm, line)
    losses = [[one.step(writer_batch(seed=step)).loss for step in range(3)] for one in (reference, runner)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    for name, value in reference.parameters().items():
        np.testing.assert_allclose(value, runner.parameters()[name], atol=1e-6, err_msg=name)
    assert abs(runner.parameters()["enc.a.norm.moving_mean"]).max() > 0.01
    assert runner.evaluate(writer_batch()).loss == pytest.approx(reference.evaluate(writer_batch()).loss, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "line", "options", "reason"),
    [
        (Norm, INLINE, {"recompute": (0,)}, r"run\.recompute runs the forwards of stage 0 twice"),
        (Average, INLINE, {"recompute": (0,)}, "twice"),
        (Norm, TRANSPOSE.replace("enc)", "enc, split=2)"), {}, "forwarded in pieces"),
        (Average, "gpipe(enc+net)", {}, "backwards of stage 0 run after later forwards have written what they read"),
        (Codebook, TRANSPOSE, {}, "backwards of stage 0 run after later forwards"),
        (Codebook, "gpipe(enc+net)", {}, "backwards of stage 0 run after later forwards"),
    ],
)
def test_what_one_process_would_not_do_is_refused_in_the_first_step(kind, line, options, reason):
    runner = runner_of(kind, line, **options)
    with pytest.raises(ModelError, match=f"a forward writes enc.a.*not be that of one process: .*{reason}.*GroupNorm"):
        runner.step(writer_batch())


@pytest.mark.parametrize("kind", [Norm, Average, Codebook, Counter])
@pytest.mark.parametrize(
    ("line", "ranks", "topology", "reason"),
    [
        (TRANSPOSE, 2, None, "each of the P = 2 ranks forwards only the micro-batches that it owns"),
        (INLINE, 2, Topology(2, 2), "D = 2, T = 1: each worker would write its own copy"),
        (INLINE, 2, Topology(2, 1, 2), "D = 1, T = 2: each worker would write its own copy"),
    ],
)
def test_copies_that_would_drift_apart_are_refused(kind, line, ranks, topology, reason):
    with pytest.raises(ModelError, match=reason):
        forward(*writes_of(kind, line, ranks, topology))


def test_on_a_stage_of_a_pipeline_only_what_no_backward_reads_may_be_written():
    forward(*writes_of(Norm, INLINE, 2))
    with pytest.raises(ModelError, match="run after later forwards have written"):
        forward(*writes_of(Average, INLINE, 2))


def test_an_order_that_differs_from_step_to_step_is_refused_when_it_comes():
    slab, writes = writes_of(Norm, INLINE, 1)
    writes.check_order((1, 0, 2, 3))
    forward(slab, writes, numbers=(0, 1, 2, 3))
    writes.check_order(None)
    with pytest.raises(ModelError, match="in the order 1, 0, 2, 3; set planner.reorder: false"):
        writes.check_order((1, 0, 2, 3))


@pytest.mark.parametrize("kind", [Counter, EvalCounter])
def test_evaluation_changes_nothing(kind):
    runner = runner_of(kind)
    with pytest.raises(ModelError, match="writes enc.a.count.*evaluation would change the model"):
        runner.evaluate(writer_batch())


@pytest.mark.parametrize("line", [INLINE, TRANSPOSE])
def test_the_ways_out_are_ways_out(line):
    for kind, trainable in ((Groups, True), (Norm, False)):
        runner = runner_of(kind, line, trainable, recompute=(0,))
        before = runner.parameters()
        plain = runner_of(kind, INLINE, trainable)
        assert runner.step(writer_batch()).loss == pytest.approx(plain.step(writer_batch()).loss, rel=1e-6)
        same = {name for name, value in runner.parameters().items() if np.array_equal(value, before[name])}
        assert same >= {name for name in before if name.startswith("enc.a.norm.moving")}


@pytest.mark.slow
def test_a_graph_whose_forwards_write_is_refused_before_its_first_step():
    from mindspore import GRAPH_MODE, set_context

    from hyperparallel.cells.graph import GraphRunner

    set_context(mode=GRAPH_MODE)
    columns = {"x": TensorSpec((6, 4)), "y": TensorSpec((6, 1))}
    try:
        for kind, trainable in (
            (Norm, True),
            (Average, True),
            (Codebook, True),
            (Norm, False),
            (Groups, True),
            (EvalCounter, True),
        ):
            layers = writer_layers(kind, trainable)
            plan = derive(INLINE, model_spec(layers), 1, 4)
            if kind is Norm and trainable:
                with pytest.raises(ModelError, match="writes enc.a.norm.moving_mean.*a compiled step may run"):
                    GraphRunner(plan, layers, columns)
                continue
            runner = GraphRunner(plan, layers, columns)
            before = runner.parameters()
            if kind in (Groups, EvalCounter) or not trainable:
                runner.step(writer_batch())
                if kind is EvalCounter:
                    with pytest.raises(ModelError, match="writes enc.a.count.*evaluation would change the model"):
                        runner.evaluate(writer_batch())
                else:
                    runner.evaluate(writer_batch())
                continue
            with pytest.raises(ModelError, match="a forward writes enc.a.*a compiled step may run a forward again"):
                runner.step(writer_batch())
            assert all(np.array_equal(value, before[name]) for name, value in runner.parameters().items())
    finally:
        set_context(mode=1)
