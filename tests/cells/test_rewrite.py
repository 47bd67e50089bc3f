"""A Cell trains alike before and after the transpose pass, with its own parameter names; others are refused by line."""

import inspect
import json
import sys
from functools import cache
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import rewrite_cells as cells
from cells_jobs import run_ranks

from hyperparallel import AdamW, Layer, Runner, Transport, derive, model_spec
from hyperparallel.cells.layer import build_layer, layer_of, seeded
from hyperparallel.cells.optimizer import Optimizer
from hyperparallel.cells.rewrite import transpose_pass
from hyperparallel.errors import ModelError

KINDS = {
    cells.Inside: ("pixels", "ids", "labels"),
    cells.Outside: ("ids", "pixels", "sound", "labels"),
    cells.Deep: ("pixels", "ids", "labels"),
}
SCHEDULES = ("transpose(vision) >> 1f1b(llm)", "1f1b(vision+llm)")
SETTINGS = AdamW(lr=0.02)
STEPS = 3
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def original(kind):
    with seeded(3, "original"):
        return kind()


@cache
def expected(kind):
    """Train the Cell as it is: losses, and parameters before and after."""
    cell = original(kind)
    initial = {p.name: p.asnumpy().copy() for p in cell.get_parameters()}
    weights = ms.ParameterTuple(cell.trainable_params())
    optimizer = Optimizer(SETTINGS, list(weights))
    both = ms.jit(ms.value_and_grad(cell, None, weights, has_aux=True))
    cell.set_train()
    losses = []
    for step in range(STEPS):
        loss, terms, total = 0.0, 0.0, None
        for columns in cells.batch_of(step):
            (summed, weight), gradients = both(*(ms.Tensor(columns[name]) for name in KINDS[kind]))
            loss, terms = loss + float(summed), terms + float(weight)
            total = [g.asnumpy() if total is None else total[i] + g.asnumpy() for i, g in enumerate(gradients)]
        losses.append(loss / terms)
        total = [g / np.float32(terms) for g in total]
        norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in total))
        clip = SETTINGS.clip_norm
        optimizer.update([g * np.float32(clip / norm) if 0 < clip < norm else g for g in total], SETTINGS.lr)
    return losses, initial, {p.name: p.asnumpy() for p in cell.get_parameters()}


@cache
def layers_of(kind):
    return transpose_pass(kind)


def runner_of(kind, schedule, **options):
    layers = layers_of(kind)
    plan = derive(schedule, model_spec(layers), options.pop("ranks", 1), len(cells.batch_of(0)))
    return Runner(plan, layers, optimizer=SETTINGS, **options)


def load(runner, values):
    """Load a checkpoint of the original Cell; return the names that found no place."""
    missing = set(values)
    for slab in runner.slabs.values():
        left_out, _ = ms.load_param_into_net(slab.chain, {name: ms.Parameter(v) for name, v in values.items()})
        assert set(left_out) <= copies(runner.layers), left_out
        missing -= {p.name for p in slab.chain.get_parameters()}
    for layer in runner.layers:  # a checkpoint has a tied parameter once
        for local, target in layer.tied.items():
            for slab in runner.slabs.values():
                for parameter in slab.chain.get_parameters():
                    if parameter.name == f"{layer.name}.{local}":
                        parameter.set_data(ms.Tensor(values[target]))
    return missing


def copies(layers):
    return {f"{layer.name}.{local}" for layer in layers for local in layer.tied}


@every_kind
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_trains_as_before(kind, schedule):
    losses, initial, final = expected(kind)
    runner = runner_of(kind, schedule)
    assert load(runner, initial) == set()
    assert set(runner.parameters()) - copies(runner.layers) == set(initial)
    for name, value in runner.parameters().items():
        if name in initial:
            np.testing.assert_array_equal(value, initial[name])
    seen = [runner.step(cells.batch_of(step)).loss for step in range(STEPS)]
    np.testing.assert_allclose(seen, losses, rtol=1e-6)
    for name, value in runner.parameters().items():
        if name in final:
            np.testing.assert_allclose(value, final[name], rtol=1e-4, atol=1e-5, err_msg=name)
            assert not np.array_equal(value, initial[name]), name


def test_layers_are_named_by_their_place_in_the_cell():
    deep, outside = layers_of(cells.Deep), layers_of(cells.Outside)
    assert [(layer.name, layer.part, layer.columns) for layer in deep] == [
        ("vision.input", "vision", ("pixels",)),
        ("vision.blocks.0", "vision", ()),
        ("vision.blocks.1", "vision", ()),
        ("vision.output", "vision", ()),
        ("llm.input", "llm", ("ids",)),
        ("blocks.0", "llm", ()),
        ("blocks.1", "llm", ()),
        ("blocks.2", "llm", ()),
        ("llm.output", "llm", ("labels",)),
    ]
    names = [layer.name for layer in outside]
    assert names[:6] == [
        "vision.input",
        "vision.blocks.0",
        "vision.blocks.1",
        "vision.between",
        "audio.blocks.0",
        "vision.output",
    ]
    assert names[6:] == ["llm.input", "llm.layer0", "llm.layer1", "llm.layer2", "llm.output"]
    assert outside[-1].tied == {"table": "table"}


def test_optional_inputs_and_a_decoder_that_holds_its_embedding():
    layers = transpose_pass(cells.Nested, ("pixels", "ids", "labels"))
    names = ["vision.input", "visual.blocks.0", "visual.blocks.1", "vision.output"]
    assert [layer.name for layer in layers if layer.part == "vision"] == names
    names = ["llm.input", "model.layers.0", "model.layers.1", "llm.output"]
    assert [layer.name for layer in layers if layer.part == "llm"] == names
    runner = Runner(derive(SCHEDULES[0], model_spec(layers), 1, 1), layers, jit=False)
    cell, batch = cells.Nested(), cells.batch_of(0)[:1]
    ms.load_param_into_net(cell, {name: ms.Parameter(value) for name, value in runner.parameters().items()})
    loss, weight = cell(*(ms.Tensor(batch[0][name]) for name in ("pixels", "ids", "labels")))
    np.testing.assert_allclose(runner.evaluate(batch).loss, float(loss) / float(weight), rtol=1e-6)


@every_kind
def test_a_layer_holds_its_own_parameters_with_the_same_first_values_every_time(kind):
    seen = set()
    for layer in layers_of(kind):
        first, second = build_layer(layer, 1), build_layer(layer, 1)
        values = {p.name: p.asnumpy() for p in first.get_parameters()}
        for parameter in second.get_parameters():
            np.testing.assert_array_equal(parameter.asnumpy(), values[parameter.name], err_msg=parameter.name)
            assert layer_of(parameter.name, layers_of(kind)) == layers_of(kind).index(layer)
        assert not seen & set(values)
        seen |= set(values)
    drawn = [build_layer(layer, 1).get_parameters() for layer in layers_of(cells.Deep)[5:7]]
    pairs = zip(*drawn, strict=True)
    assert any(not np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in pairs), "two layers with the same weights"


def test_frozen_parts_and_parameters_are_not_trained():
    def half_frozen():
        cell = cells.Deep()
        for parameter in (*cell.blocks[0].get_parameters(), cell.embed.embedding_table):
            parameter.requires_grad = False
        return cell

    layers = transpose_pass(half_frozen, frozen=("vision",))
    assert not any(layer.trainable for layer in layers[:4])
    assert [layer.trainable for layer in layers[4:]] == [False, False, True, True, True]
    # The layer trains; what its author froze in it stays frozen.
    head = transpose_pass(lambda: freeze(cells.Inside(), "norm.gamma"))[-1]
    assert {p.name: p.requires_grad for p in build_layer(head, 0).get_parameters()}["norm.gamma"] is False
    assert head.trainable


def freeze(cell, name):
    for parameter in cell.get_parameters():
        parameter.requires_grad = parameter.name != name
    return cell


REFUSED = {
    cells.FedByText: "depends on pixels and on ids",
    cells.Undecided: "only the batch decides",
    cells.NoLayers: "no decoder layers",
    cells.OneValue: "must return (loss, weight",
    cells.Stored: "plain names",
    cells.Collected: "cannot be moved",
    cells.Bundled: "single tensors",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_refuses_with_file_line_reason_and_way_out(kind):
    lines, first = inspect.getsourcelines(kind)
    line = first + next(index for index, text in enumerate(lines) if "# refused" in text)
    with pytest.raises(ModelError) as error:
        transpose_pass(kind)
    assert f"{cells.__file__}, line {line}: `" in str(error.value)
    assert REFUSED[kind] in str(error.value)
    assert "list of Layer (docs/own_model.md)" in str(error.value)


def test_asks_for_the_modality_where_nothing_tells():
    with pytest.raises(ModelError, match=r"pixels, ids, labels.*modality="):
        transpose_pass(cells.Ambiguous)
    layers = transpose_pass(cells.Ambiguous, modality=("pixels",))
    assert [layer.columns for layer in layers if layer.columns] == [("pixels",), ("ids",), ("labels",)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"modality": ("image",)}, "expected one or more of the inputs pixels, ids, labels"),
        ({"columns": ("pixels", "ids")}, "needs ids, labels, pixels"),
        ({"columns": ("pixels", "ids", "labels", "mask")}, "takes pixels, ids, labels, extra"),
        ({"frozen": ("audio",)}, "expected names of the parts"),
        ({"metrics": ("right",)}, "returns 2 values with 1 metrics"),
    ],
)
def test_refuses_arguments_that_do_not_fit(options, says):
    with pytest.raises(ModelError, match=says):
        transpose_pass(cells.Inside, **options)


def test_columns_may_have_other_names_and_optional_inputs():
    layers = transpose_pass(cells.Inside, {"pixels": "image", "ids": "ids", "labels": "labels", "extra": "more"})
    assert layers[0].columns == ("image",)
    assert [layer.columns for layer in layers if layer.part == "llm"][0] == ("ids", "more")


def test_a_layer_must_have_the_parameters_it_lists():
    layer = Layer("one", "net", lambda: ms.nn.Dense(2, 2), parameters={"weight": "w"})
    with pytest.raises(ModelError, match="lists the parameters weight; its Cell has bias, weight"):
        build_layer(layer, 0)
    assert layer_of("w", [layer]) == 0
    with pytest.raises(ModelError, match="belongs to no layer"):
        layer_of("one.weight", [layer])


def worker(out):
    """Train on this rank of a job; write the losses."""
    transport = Transport.start()
    runner = runner_of(cells.Outside, SCHEDULES[0], ranks=transport.size, transport=transport)
    load(runner, {p.name: p.asnumpy() for p in original(cells.Outside).get_parameters()})
    losses = [runner.step(cells.batch_of(step)).loss for step in range(STEPS)]
    seen = {"losses": losses, "parameters": sorted(runner.parameters())}
    Path(out, f"{transport.rank}.json").write_text(json.dumps(seen))
    transport.leave()


@pytest.mark.slow
def test_trains_on_two_ranks_as_before(tmp_path):
    run_ranks([__file__, str(tmp_path)], 2, tmp_path)
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for one in seen:
        np.testing.assert_allclose(one["losses"], expected(cells.Outside)[0], rtol=1e-5)
        assert "vision.patch.weight" in one["parameters"]
    assert ("table" in seen[0]["parameters"]) and ("llm.output.table" in seen[1]["parameters"])
    assert "llm.layer0.fc.weight" not in seen[1]["parameters"]


if __name__ == "__main__":
    worker(sys.argv[1])
