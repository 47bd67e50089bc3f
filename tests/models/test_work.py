"""What layers move, against their Cells; their FLOPs are in test_mllm.py."""

import pytest
from models_slab import LLM, TINY, VISION

from hyperparallel.models import mllm

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
    assert embed.traffic(SIZES).activations == 2 * 3 * 12 * LLM.width


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
