"""Counts of large models against what their makers state, and against counting by hand."""

import pytest

from hyperparallel.cost.decoder_shape import Decoder, MoeDecoder
from hyperparallel.cost.layer_shapes import Spread
from hyperparallel.cost.presets import load_model
from hyperparallel.cost.vit_shape import Vit

SIZES = {"images": 2, "tokens": 4096, "samples": 2}
PUBLISHED = [  # parameters in 1e9
    pytest.param("qwen2_vl_vit", 0.675, 34, id="Qwen2-VL technical report, arXiv 2409.12191: 675M"),
    pytest.param("qwen2_7b", 7.616, 30, id="model card of Qwen/Qwen2-7B: 7.62B"),
    pytest.param("qwen3_8b", 8.191, 38, id="model card of Qwen/Qwen3-8B: 8.2B"),
    pytest.param("deepseek_v3", 671.0, 63, id="arXiv 2412.19437: 671B"),
]


@pytest.mark.parametrize(("name", "parameters", "layers"), PUBLISHED)
def test_parameters_are_the_published_ones(name, parameters, layers):
    model = load_model(name)
    assert model.parameters == pytest.approx(parameters * 1e9, rel=2e-3)
    assert len(model.layers) == layers


def test_a_token_of_deepseek_v3_multiplies_the_published_parameters():
    layers = load_model("deepseek_v3").layers
    flops = sum(layer.count({"images": 0, "tokens": 1, "samples": 1}).flops for layer in layers[1:])
    assert flops / 2 == pytest.approx(36.6e9, rel=2e-3)  # with one token there is next to no attention


def test_a_dense_block_by_hand():
    part = Decoder(kind="decoder", layers=1, width=8, heads=4, kv_heads=2, ffn=16, vocab_size=32)
    embed, block, head = part.shapes("llm", Spread())
    matrices = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16
    assert block.parameters == matrices and embed.parameters == head.parameters == 32 * 8
    count = block.count({"tokens": 20, "samples": 2})
    # Two products of 8 features with half of a row of 10 tokens.
    assert count.mixing == 20 * 2 * 2 * 8 * 5
    assert count.flops == 2 * 20 * matrices + count.mixing and count.weights == matrices
    assert head.count({"tokens": 20}).flops == 2 * 20 * 8 * 32
    assert block.carry({"tokens": 20}) == 160 and head.carry({"tokens": 20}) == 0


def test_windows_bound_attention_but_for_the_blocks_that_see_all():
    layers = load_model("qwen2_5_vl_vit").layers
    mixing = [layer.count(SIZES).mixing for layer in layers]
    assert [index - 1 for index, one in enumerate(mixing) if one == max(mixing)] == [7, 15, 23, 31]
    assert max(mixing) == pytest.approx(mixing[1] * 1024 / 64)


def test_experts_are_all_held_but_few_are_multiplied():
    part = MoeDecoder(
        kind="moe_decoder", layers=2, dense_layers=1, width=8, heads=2, kv_heads=2, ffn=32, vocab_size=16,
        experts=4, experts_per_token=2, shared_experts=1, expert_ffn=6,
    )  # fmt: skip
    attention, expert, router = 4 * 8 * 8, 3 * 8 * 6, 8 * 4
    _, dense, mixed, _ = part.shapes("llm", Spread())
    assert dense.parameters == attention + 3 * 8 * 32
    assert mixed.parameters == attention + 5 * expert + router
    count = mixed.count({"tokens": 10})
    assert count.flops - count.mixing == 2 * 10 * (attention + 3 * expert + router)
    assert count.weights == mixed.parameters
    assert mixed.count({"tokens": 1}).weights == attention + 3 * expert + router  # one token reads its own experts
    spread = part.shapes("llm", Spread(experts=4))[2]
    assert spread.parameters == attention + 2 * expert + router and spread.count({"tokens": 10}).flops == count.flops


def test_shards_of_a_block_share_it():
    whole, half = load_model("qwen3_8b"), load_model("qwen3_8b", tensor=2)
    for one, other in zip(whole.layers, half.layers, strict=True):
        factor = 2 if "blocks" in one.name else 1
        assert one.parameters == factor * other.parameters
        assert one.count(SIZES).flops == pytest.approx(factor * other.count(SIZES).flops)
        assert one.carry(SIZES) == other.carry(SIZES)


def test_work_of_an_encoder_grows_with_images_and_that_of_the_llm_with_tokens():
    for layer in load_model("vision=qwen2_vl_vit,llm=qwen2_7b").layers:
        more = {**SIZES, **({"images": 4} if layer.part == "vision" else {"tokens": 8192, "samples": 4})}
        assert layer.count(more).flops == pytest.approx(2 * layer.count(SIZES).flops)
        assert layer.saved(more) == pytest.approx(2 * layer.saved(SIZES))


def test_a_gate_is_a_third_matrix():
    settings = {"kind": "vit", "layers": 1, "width": 8, "heads": 2, "ffn": 16, "patch_size": 2, "output": 8}
    plain, gated = (Vit(**settings, image_size=8, gated=gate).shapes("vision", Spread())[1] for gate in (False, True))
    assert gated.parameters - plain.parameters == 8 * 16
