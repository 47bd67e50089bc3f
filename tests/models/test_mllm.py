import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from models_slab import LLM, SENS, TINY, VISION, JitSlab, Slab, backward, batch

from hyperparallel.cells.layer import build_layer, check_layers
from hyperparallel.models import MllmConfig, mllm

TEXT_ONLY = MllmConfig(llm=LLM, image_token=3)


def test_layers_of_a_multimodal_model():
    layers = mllm(TINY)
    check_layers(layers)
    assert [(layer.name, layer.part, layer.columns) for layer in layers] == [
        ("vision.patch", "vision", ("pixel_values",)),
        ("vision.blocks.0", "vision", ()),
        ("vision.merger", "vision", ()),
        ("llm.embed", "llm", ("input_ids",)),
        ("llm.blocks.0", "llm", ()),
        ("llm.head", "llm", ("labels",)),
    ]
    assert layers[-1].metrics == ("exact", "samples")


def test_layers_of_a_text_only_model():
    assert [layer.name for layer in mllm(TEXT_ONLY)] == ["llm.embed", "llm.blocks.0", "llm.head"]
    _, ids, labels = batch(1, 2, 5, 0)
    loss, weight, exact, samples = Slab(mllm(TEXT_ONLY), first=True)(ids, labels)
    assert float(loss) > 0 and float(weight) == (labels.asnumpy() != -100).sum()
    assert (float(exact), float(samples)) == (0, 2)


@pytest.mark.parametrize("frozen", ["vision", "llm"])
def test_a_part_can_be_frozen(frozen):
    part = getattr(TINY, frozen).model_copy(update={"trainable": False})
    layers = mllm(TINY.model_copy(update={frozen: part}))
    assert {layer.part for layer in layers if not layer.trainable} == {frozen}


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_names_the_embedding(tied):
    llm = LLM.model_copy(update={"tied": tied})
    layers = {layer.name: layer for layer in mllm(TINY.model_copy(update={"llm": llm}))}
    assert layers["llm.head"].tied == ({"weight": "llm.embed.weight"} if tied else {})
    embed, head = (
        {parameter.name: parameter for parameter in build_layer(layers[name], 0).get_parameters()}
        for name in ("llm.embed", "llm.head")
    )
    assert embed["llm.embed.weight"].shape == head["llm.head.weight"].shape


def test_weights_depend_on_seed_and_name_only():
    layers = mllm(TINY)
    np.random.seed(1)
    forwards = [build_layer(layer, 7) for layer in layers]
    backwards = [build_layer(layer, 7) for layer in reversed(layers)][::-1]
    for one, other in zip(forwards, backwards, strict=True):
        for first, second in zip(one.get_parameters(), other.get_parameters(), strict=True):
            assert first.name == second.name and np.array_equal(first.asnumpy(), second.asnumpy())


# (images, rows, length, placeholders): images and length vary, also to one dummy image without placeholder.
# MindSpore compiles the first three shapes on their own, and one graph for all further ones at the fourth.
BATCHES = [(3, 2, 9, 12), (2, 3, 7, 8), (1, 2, 5, 0), (5, 2, 12, 20)]


def run_first_in_first_out(kind, batches=BATCHES):
    """Run all forwards, then all backwards in the same order, through a vision and an LLM slab."""
    vision, llm = (
        kind([layer for layer in mllm(TINY) if layer.part == part], first=part == "vision")
        for part in ("vision", "llm")
    )
    columns = [batch(*sizes, seed=index) for index, sizes in enumerate(batches)]
    carries = [vision(pixels) for pixels, _, _ in columns]
    outputs = [llm(carry, ids, labels) for carry, (_, ids, labels) in zip(carries, columns, strict=True)]
    results = []
    for (pixels, ids, labels), carry, output in zip(columns, carries, outputs, strict=True):
        of_inputs, of_llm = backward(llm, (carry, ids, labels), SENS)
        _, of_vision = backward(vision, (pixels,), ms.Tensor(of_inputs[0]))
        results.append([value.asnumpy() for value in output] + of_inputs + of_llm + of_vision)
    return results


def test_graphs_equal_eager_for_changing_shapes_in_any_order():
    for graph, eager in zip(run_first_in_first_out(JitSlab), run_first_in_first_out(Slab), strict=True):
        for got, expected in zip(graph, eager, strict=True):
            assert np.abs(got - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


def test_one_slab_of_all_layers_equals_two():
    columns = batch(*BATCHES[0])
    whole = Slab(mllm(TINY), first=True)
    of_inputs, of_weights = backward(whole, columns, SENS)
    split = run_first_in_first_out(Slab, BATCHES[:1])[0]
    names = [parameter.name for parameter in whole.trainable_params()]
    of_vision = [g for name, g in zip(names, of_weights, strict=True) if name.startswith("vision.")]
    for got, expected in zip(of_vision, split[-len(of_vision) :], strict=True):
        assert np.allclose(got, expected, atol=1e-5)


def test_a_dummy_image_gets_no_gradient():
    cell, columns = Slab(mllm(TINY), first=True), batch(1, 2, 6, 0)
    of_inputs, of_weights = backward(cell, columns, SENS)
    assert not of_inputs[0].any()
    for parameter, gradient in zip(cell.trainable_params(), of_weights, strict=True):
        assert gradient.any() != parameter.name.startswith("vision.")


def test_it_learns_to_name_images():
    cell = JitSlab(mllm(TINY), first=True)
    rng = np.random.default_rng(0)
    kinds = rng.standard_normal((4, 1, 8, 8))
    adam = nn.Adam(cell.trainable_params(), learning_rate=1e-2)
    ids = np.tile([1, 3, 3, 3, 3, 2], (8, 1)).astype(np.int32)
    for _ in range(60):
        kind = rng.integers(0, 4, 8)
        labels = np.full((8, 6), -100, np.int32)
        labels[:, -1] = 10 + kind
        pixels = kinds[kind] + 0.1 * rng.standard_normal((8, 1, 8, 8))
        columns = (ms.Tensor(pixels.astype(np.float32)), ms.Tensor(ids), ms.Tensor(labels))
        loss, weight, exact, samples = cell(*columns)
        _, gradients = backward(cell, columns, SENS)
        adam(tuple(ms.Tensor(gradient / 8) for gradient in gradients))
    assert float(loss) / float(weight) < 0.2
    assert float(exact) == float(samples) == 8


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize(("rows", "length"), [(2, 10), (4, 5), (1, 3)])
def test_work_counts_two_per_multiply_add(images, rows, length):
    sizes = {"images": images, "samples": rows, "tokens": rows * length}
    patches, tokens = images * VISION.patches, rows * length
    passes = {
        "vision.patch": (patches, 0),
        "vision.blocks.0": (patches, 2 * VISION.patches * VISION.width),
        "vision.merger": (images * VISION.tokens_per_image, 0),
        "llm.blocks.0": (tokens, length * LLM.width),  # causal: half of a row
        "llm.head": (tokens, 0),
    }
    for layer in mllm(TINY):
        if layer.name == "llm.embed":
            assert 0 < layer.work(sizes) <= tokens * LLM.width
            continue
        rows_through, attention = passes[layer.name]
        matrices = sum(p.size for p in layer.build().get_parameters() if p.ndim == 2)
        assert layer.work(sizes) == 2 * rows_through * (matrices + attention)
