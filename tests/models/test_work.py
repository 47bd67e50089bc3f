"""What layers compute and move: against their Cells (FLOPs: test_mllm.py), and against a file of the same sizes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models_slab import LLM, TINY, VISION

import yaml
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.cost.presets import load_model
from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig, mllm

SIZES = {"images": 3, "samples": 2, "tokens": 12}
MORE = {"images": 6, "samples": 4, "tokens": 24}
LAYERS = [layer for layer in mllm(TINY) if layer.name != "llm.embed"]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_all_matrices_are_read(layer):
    matrices = sum(p.size for p in layer.build().get_parameters() if p.ndim == 2)
    assert layer.traffic(SIZES).weights == matrices


def test_a_lookup_reads_its_rows_only():
    embed = next(layer for layer in mllm(TINY) if layer.name == "llm.embed")
    assert embed.traffic(SIZES).weights == 0
    assert embed.traffic(SIZES).activations == 2 * 12 * LLM.width  # what it hands on, written and read


@pytest.mark.parametrize("layer", mllm(TINY), ids=lambda layer: layer.name)
def test_twice_the_rows_move_twice_as_much_and_the_same_weights(layer):
    once, twice = layer.traffic(SIZES), layer.traffic(MORE)
    assert twice.activations == pytest.approx(2 * once.activations) and twice.mixing == pytest.approx(2 * once.mixing)
    assert twice.weights == once.weights


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_what_is_no_mixing_multiplies_weights(layer):
    traffic = layer.traffic(SIZES)
    rows = {"vision.merger": 3 * VISION.tokens_per_image, "llm.blocks.0": 12, "llm.head": 12}
    assert layer.work(SIZES) - traffic.mixing == 2 * rows.get(layer.name, 3 * VISION.patches) * traffic.weights
    assert (traffic.mixing > 0) == ("blocks" in layer.name)


@st.composite
def configs(draw):
    """Draw a model whose heads and inner features T = 2 divides."""
    size = lambda most: draw(st.integers(1, most))  # noqa: E731
    patch, merge, heads, kv_heads = size(4), size(3), 2 * size(3), 2 * size(2)
    vision = VisionConfig(
        image_size=patch * merge * size(4),
        channels=draw(st.sampled_from([1, 3])),
        patch_size=patch,
        merge=merge,
        width=4 * heads * size(4),
        depth=size(3),
        heads=heads,
        ffn=2 * size(40),
    )
    groups = size(3)
    llm = DecoderConfig(
        vocab_size=1 + size(99),
        width=2 * kv_heads * groups * size(6),
        depth=size(3),
        heads=kv_heads * groups,
        kv_heads=kv_heads,
        ffn=2 * size(40),
        max_length=64,
    )
    return MllmConfig(vision=vision, llm=llm, image_token=0)


def by_hand(config, sizes, shards):
    """Count the FLOPs of all layers as docs/costs.md does."""
    vision, llm = config.vision, config.llm
    patches, tokens = sizes["images"] * vision.patches, sizes["tokens"]
    pixels = vision.channels * vision.patch_size**2
    merged = vision.merge**2 * vision.width * llm.width + llm.width**2
    vision_block = 4 * vision.width**2 + 2 * vision.width * vision.ffn
    kv_width = llm.width // llm.heads * llm.kv_heads
    llm_block = 2 * llm.width**2 + 2 * llm.width * kv_width + 3 * llm.width * llm.ffn
    context = tokens / sizes["samples"] / 2
    return [
        2 * patches * pixels * vision.width,
        *[2 * patches * (vision_block + 2 * vision.patches * vision.width) / shards] * vision.depth,
        2 * sizes["images"] * vision.tokens_per_image * merged,
        tokens * llm.width,
        *[2 * tokens * (llm_block + 2 * context * llm.width) / shards] * llm.depth,
        2 * tokens * llm.width * llm.vocab_size,
    ]


@settings(max_examples=60, deadline=None)
@given(configs(), st.integers(1, 9), st.integers(1, 5), st.integers(1, 64), st.sampled_from([1, 2]))
def test_a_file_of_the_same_sizes_counts_the_same(tmp_path_factory, config, images, samples, length, shards):
    vision, llm = config.vision, config.llm
    shared = {"image_size", "channels", "patch_size", "merge", "width", "heads", "ffn"}
    merger = {"merger_ffn": llm.width, "output": llm.width}
    parts = {
        "vision": {"kind": "vit", "layers": vision.depth, **vision.model_dump(include=shared), **merger},
        "llm": {
            "kind": "decoder",
            "layers": llm.depth,
            **llm.model_dump(include={"vocab_size", "width", "heads", "kv_heads", "ffn"}),
        },
    }
    path = tmp_path_factory.mktemp("models") / "same.yaml"
    path.write_text(yaml.safe_dump({"source": "test", **parts}))
    sizes = {"images": images, "samples": samples, "tokens": samples * length}
    layers, shapes = mllm(config, TensorParallel(shards)), load_model(str(path), tensor=shards).layers
    assert [layer.name for layer in layers] == [shape.name for shape in shapes]
    assert [layer.work(sizes) for layer in layers] == [shape.count(sizes).flops for shape in shapes]
    assert [layer.traffic(sizes) for layer in layers] == [shape.count(sizes).traffic for shape in shapes]
    assert [layer.work(sizes) for layer in layers] == pytest.approx(by_hand(config, sizes, shards))
    pixels = (images, vision.channels, vision.image_size, vision.image_size)
    columns = {"pixel_values": pixels, "input_ids": (samples, length)}
    carries = [sum(map(math.prod, layer.carry(columns))) for layer in layers[:-1]]
    assert carries == [shape.carry(sizes) for shape in shapes[:-1]]
