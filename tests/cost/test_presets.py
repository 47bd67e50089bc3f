import pytest

from hyperparallel.algebra import derive
from hyperparallel.cost import lower_bound, simulate
from hyperparallel.cost.device import load_device
from hyperparallel.cost.presets import load_model
from hyperparallel.errors import ConfigError

DEVICE = load_device("ascend_910b")
TEXT = "vision=qwen2_vl_vit,llm=qwen3_8b"
MODEL = load_model(TEXT, image_size=224)
SPEC = MODEL.spec(4, 2048, DEVICE)
WARMUP, INLINE = "transpose(vision) >> 1f1b(llm)", "1f1b(vision+llm)"


def test_parts_of_two_files_make_one_model():
    assert SPEC.parts == ("vision", "llm") and len(SPEC.layers) == 34 + 38
    assert MODEL.parts["vision"].output == 4096 and MODEL.tokens_per_image == 64
    assert load_model("llm=qwen3_8b,vision=qwen2_vl_vit", image_size=224) == MODEL
    assert load_model("qwen3_8b").tokens_per_image == 0


def test_costs_are_those_of_the_layers_and_balanced_slabs_use_them():
    sizes = [{"images": 4, "tokens": 2048}] * 4
    even, balanced = (derive(f"1f1b(vision+llm{option})", SPEC, 4, 4) for option in ("", ", slabs=balanced"))
    work = {}
    for plan in (even, balanced):
        costs = MODEL.costs(plan, sizes, DEVICE)
        work[plan] = [costs.compute[stage, "F"][0] + costs.compute[stage, "B"][0] for stage in range(4)]
        assert sum(work[plan]) == pytest.approx(sum(layer.cost for layer in SPEC.layers))
    assert max(work[balanced]) < max(work[even])


def test_micro_batches_cost_what_is_in_them_and_messages_their_bytes():
    plan = derive(WARMUP, SPEC, 4, 2)
    costs = MODEL.costs(plan, [{"images": 2, "tokens": 1024}, {"images": 16, "tokens": 2048}], DEVICE)
    assert costs.compute[0, "F"][1] == pytest.approx(8 * costs.compute[0, "F"][0], rel=0.05)
    assert costs.compute[5, "F"][1] > 1.9 * costs.compute[5, "F"][0]
    assert costs.message_bytes[0, "SEND_F"] == [2 * 64 * 4096 * 2, 16 * 64 * 4096 * 2]
    assert costs.message_bytes[4, "SEND_F"] == [1024 * 4096 * 2, 2048 * 4096 * 2]
    assert (costs.alpha, costs.beta) == pytest.approx((DEVICE.inside.alpha * 1e3, DEVICE.inside.beta * 1e3))
    assert MODEL.costs(plan, [{"images": 1, "tokens": 8}] * 2, DEVICE, workers=16).beta == DEVICE.between.beta * 1e3
    assert simulate(plan, costs).step_time >= lower_bound(plan, costs)


def test_a_frozen_encoder_has_no_backward():
    frozen = load_model(TEXT, frozen={"vision"})
    plan = derive(WARMUP, frozen.spec(4, 2048, DEVICE), 4, 4)
    costs = frozen.costs(plan, [{"images": 4, "tokens": 2048}] * 4, DEVICE)
    assert costs.compute[0, "B"] == [0.0] * 4 and costs.compute[4, "B"][0] > 0
    assert {layer.saved for layer in frozen.layer_bytes({"images": 4, "tokens": 2048})[:34]} == {0}


def test_recompute_costs_a_forward_and_saves_activations():
    plan, sizes = derive("1f1b(llm)", load_model("qwen3_8b").spec(0, 4096, DEVICE), 4, 8), [{"tokens": 4096}] * 8
    sizes = [{"images": 0, "tokens": 4096}] * 8
    model = load_model("qwen3_8b")
    kept, again = (model.costs(plan, sizes, DEVICE, recompute=stages) for stages in ((), range(4)))
    assert again.compute[1, "B"][0] == pytest.approx(kept.compute[1, "B"][0] + kept.compute[1, "F"][0])
    more, less = (model.peaks(plan, sizes, recompute=stages) for stages in ((), range(4)))
    assert all(one.live.activations > 3 * other.live.activations for one, other in zip(more[:3], less[:3], strict=True))


def test_memory_of_a_rank_is_16_bytes_a_parameter_and_its_activations():
    model = load_model("qwen3_8b")
    plan = derive("1f1b(llm)", model.spec(0, 4096, DEVICE), 4, 8)
    peaks = model.peaks(plan, [{"images": 0, "tokens": 4096}] * 8)
    own = [sum(layer.parameters for layer in model.layers[first:last]) for first, last in plan.placement.slabs]
    for rank, (peak, parameters) in enumerate(zip(peaks, own, strict=True)):
        live = peak.live
        assert live.parameters + live.moments + live.gradients == pytest.approx(16 * parameters, rel=1e-3), rank
    activations = [peak.live.activations for peak in peaks]
    assert activations[:3] == sorted(activations[:3], reverse=True)


MISTAKES = {
    "no such model": ("qwen4", {}, "model 'qwen4' is not a file; yaml/models has deepseek_v3, qwen2_5_vl_vit"),
    "no such file": ("a/b.yaml", {}, "model 'a/b.yaml' is not a file"),
    "no file": ("vision=", {}, "'vision=' is not of the form part=file, as in llm=qwen3_8b"),
    "no part": ("qwen2_vl_vit,llm=qwen3_8b", {}, "'qwen2_vl_vit' is not of the form part=file"),
    "twice": ("llm=qwen3_8b,llm=qwen2_7b", {}, "part 'llm' is given twice"),
    "other part": ("llm=qwen2_vl_vit", {}, "qwen2_vl_vit has no part 'llm'; it has vision"),
    "unknown part": ("audio=qwen2_vl_vit", {}, "qwen2_vl_vit has no part 'audio'; it has vision"),
    "frozen": ("qwen3_8b", {"frozen": {"vision"}}, "no part 'vision' to freeze; it has llm"),
    "no images": ("qwen3_8b", {"image_size": 448}, "no vision encoder, so no image_size"),
    "image size": (TEXT, {"image_size": 450}, "image_size 450 is not a multiple of patch_size x merge = 28"),
}


@pytest.mark.parametrize(("text", "settings", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(text, settings, words):
    with pytest.raises(ConfigError) as error:
        load_model(text, **settings)
    assert words in str(error.value)


def test_a_mistake_in_a_model_file_names_file_and_key(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("source: x\nllm:\n  kind: decodr\n  layers: 2\n")
    with pytest.raises(ConfigError, match="mine.yaml, line 2: llm"):
        load_model(str(path))
    path.write_text("source: x\nllm:\n  kind: decoder\n  layers: 0\n")
    with pytest.raises(ConfigError, match="mine.yaml, line 4: .*llm"):
        load_model(str(path))
