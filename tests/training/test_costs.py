"""Prices of a configuration: by rate, by device file, by measurement; frozen layers by one rule."""

import json

import pytest
from training_config import LINES, write_config

import yaml
from hyperparallel.cost.device import load_device
from hyperparallel.cost.measured import Fit, MeasuredCosts, MeasuredLayer, write_measured
from hyperparallel.cost.presets import load_model
from hyperparallel.errors import ConfigError
from hyperparallel.training.build import build_feed, build_layers, estimate_costs, layer_times
from hyperparallel.training.config import load_config
from hyperparallel.training.costs import conditions, identities, sizes_of
from hyperparallel.training.plan_config import plan_from_config
from hyperparallel.training.planning import build_plan

INLINE = "schedule=1f1b(vision+llm)"
DEVICE = """\
name: slow memory
peak_tflops: {float32: 1, float16: 4}
achievable: 1.0
memory_gib: 1
memory_gbytes_per_s: 1
memory_achievable: 1.0
devices_per_node: 8
inside: {alpha_us: 500, gbytes_per_s: 0.001}
between: {alpha_us: 900, gbytes_per_s: 0.0005}
"""


def loaded(tmp_path, *overrides):
    config = load_config(write_config(tmp_path), overrides)
    layers = build_layers(config)
    plan = build_plan(config, layers)
    return config, layers, plan, estimate_costs(config, plan, layers)


def sizes(config):
    return [sizes_of(info) for info in build_feed(config, "train").describe(0)]


def test_frozen_layers_of_a_mixed_slab_cost_no_backward(tmp_path):
    frozen = "model.vision.trainable=false"
    config, layers, plan, costs = loaded(tmp_path, INLINE, "parallel.ranks=1", frozen, "cost.gflops=1")
    trained = [sum(layer.work(size) for layer in layers if layer.trainable) / 1e6 for size in sizes(config)]
    assert 0 < trained[0] < costs.compute[0, "F"][0]
    assert costs.compute[0, "B"] == pytest.approx([2 * time for time in trained])
    assert sum(layer_times(config, layers)) == pytest.approx(
        sum(costs.compute[0, kind][mb] for kind in "FB" for mb in (0, 1)) / 2
    )


def test_a_frozen_llm_passes_the_gradient_on(tmp_path):
    config, layers, plan, costs = loaded(tmp_path, "model.llm.trainable=false")
    for stage in (2, 3):
        assert costs.compute[stage, "B"] == costs.compute[stage, "I"] == pytest.approx(costs.compute[stage, "F"])
        assert costs.compute[stage, "W"] == [0, 0]
    assert costs.compute[0, "B"] == pytest.approx([2 * time for time in costs.compute[0, "F"]])


def test_a_device_file_prices_by_what_is_moved_and_sizes_the_messages(tmp_path):
    (tmp_path / "device.yaml").write_text(DEVICE)
    config, layers, plan, costs = loaded(tmp_path, f"cost.device={tmp_path / 'device.yaml'}")
    size = sizes(config)[0]
    traffic = [layer.traffic(size) for layer in layers]
    moved = [(one.weights + one.activations + one.float32) * 4 / 1e9 for one in traffic]  # seconds: 1 GB/s, 4 bytes
    assert all(layer.work(size) / 1e12 < time for layer, time in zip(layers, moved, strict=True))
    for stage, (first, last) in enumerate(plan.placement.slabs):
        assert costs.compute[stage, "F"][0] == pytest.approx(1e3 * sum(moved[first:last]))
    assert (costs.alpha, costs.beta) == pytest.approx((0.5, 1e-3))
    images, tokens, width = size["images"], size["tokens"], config.model.llm.width
    assert costs.message_bytes[0, "SEND_F"][0] == images * config.model.vision.tokens_per_image * width * 4
    assert costs.message_bytes[3, "SEND_B"][0] == tokens * width * 4


def test_a_file_of_the_same_sizes_costs_the_same(tmp_path):
    """What `plan CONFIG.yaml` and the search by shapes know of one model: times and bytes of every stage."""
    (tmp_path / "device.yaml").write_text(DEVICE)
    for name in ("cpu", "ascend_910b", str(tmp_path / "device.yaml")):
        config, layers, plan, costs = loaded(tmp_path, f"cost.device={name}")
        vision, llm = config.model.vision, config.model.llm
        sections = {
            "vision": {"kind": "vit", "layers": vision.depth, "merger_ffn": llm.width, "output": llm.width},
            "llm": {"kind": "decoder", "layers": llm.depth},
        }
        for part, section in ((vision, sections["vision"]), (llm, sections["llm"])):
            section |= part.model_dump(exclude={"depth", "dropout", "max_length", "rope_theta", "tied"})
        (tmp_path / "model.yaml").write_text(yaml.safe_dump({"source": "test", **sections}))
        model, device = load_model(str(tmp_path / "model.yaml")), load_device(name)
        other = model.costs(plan, sizes(config), device, dtype="float32")
        assert other.compute == {key: pytest.approx(times) for key, times in costs.compute.items()}
        assert other.message_bytes == costs.message_bytes
        assert (other.alpha, other.beta) == pytest.approx((costs.alpha, costs.beta))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_types_have_their_own_peaks_and_bytes(tmp_path, dtype):
    settings = ["run.mode=graph", "run.wires=pair_sum", f"run.dtype={dtype}"]
    config, layers, plan, costs = loaded(tmp_path, "cost.device=ascend_910b", *settings)
    rate = load_device("ascend_910b").rate(dtype)
    (first, last), size = plan.placement.slabs[2], sizes(config)[0]
    bounds = [
        (layer.work(size) / rate.flops, sum(layer.traffic(size)[:2]) * rate.element / rate.bandwidth)
        for layer in layers[first:last]
    ]
    assert costs.compute[2, "F"][0] == pytest.approx(1e3 * sum(map(max, bounds)))


def test_recomputed_stages_run_their_forward_again(tmp_path):
    kept, again = (
        loaded(tmp_path, "run.mode=graph", "run.wires=pair_sum", f"run.recompute={stages}")[3]
        for stages in ("[]", "all")
    )
    assert again.compute[2, "B"] == pytest.approx([1.5 * time for time in kept.compute[2, "B"]])


def measured(config, path, **changes):
    layers = identities(build_layers(config))
    costs = MeasuredCosts(
        device="CPU",
        conditions=conditions(config),
        sizes=[{"images": 1, "samples": 4, "tokens": 32}],
        alpha=0.002,
        beta=1e-6,
        call={"F": 0.001, "B": 0.003},
        layers=[
            MeasuredLayer(
                name=name,
                trainable=trainable,
                work=work,
                forward=Fit(base=0.002, image=0.001, token=0.0001),
                backward=Fit(base=0.01),
            )
            for name, trainable, work in layers
        ],
        stages=[],
    )
    write_measured(path, costs.model_copy(update=changes))
    return f"cost.measured={path}"


def test_a_measurement_prices_the_plan(tmp_path):
    override = measured(load_config(write_config(tmp_path)), tmp_path / "costs.json")
    config, layers, plan, costs = loaded(tmp_path, override)
    size = sizes(config)[1]
    forward = 2 + size["images"] + 0.1 * size["tokens"]
    counts = [last - first for first, last in plan.placement.slabs]
    assert counts == [3, 3, 2, 1]
    for stage, count in enumerate(counts):
        assert costs.compute[stage, "F"][1] == pytest.approx(count * forward - (count - 1))
        assert costs.compute[stage, "B"][1] == pytest.approx(count * 10 - 3 * (count - 1))
    assert (costs.alpha, costs.beta) == pytest.approx((2, 1e-3)) and costs.message_bytes[0, "SEND_F"][1] > 0
    assert layer_times(config, layers) == pytest.approx([layer_times(config, layers)[0]] * 6)


def test_plan_uses_the_measurement(tmp_path):
    path = write_config(tmp_path)
    override = measured(load_config(path), tmp_path / "costs.json")
    _, costs = plan_from_config(path, [override])
    assert costs.alpha == pytest.approx(2)


REFUSED = {
    "wider": (["model.llm.ffn=64"], "layer 4 is work in FLOPs"),
    "frozen": (["model.vision.trainable=false"], "layer 0 is trainable True, here False"),
    "deeper": (["model.llm.depth=2"], "has the times of 6 layers (vision.patch .. llm.head), the model has 7"),
    "op by op": (["run.jit=false"], "was measured with run.jit = True, here False"),
}


@pytest.mark.parametrize(("overrides", "words"), REFUSED.values(), ids=REFUSED)
def test_the_measurement_of_another_model_is_refused(tmp_path, overrides, words):
    override = measured(load_config(write_config(tmp_path)), tmp_path / "costs.json")
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, override, *overrides)
    assert words in str(error.value) and "hyperparallel profile" in str(error.value)


def test_only_one_source_of_costs(tmp_path):
    path = write_config(tmp_path, LINES + "cost:\n  device: cpu\n  measured: costs.json\n")
    with pytest.raises(ConfigError, match="line 26: cost: device 'cpu' and measured 'costs.json' are both given"):
        load_config(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match="device 'cpuu' is not a file; .*did you mean 'cpu'?"):
        loaded(tmp_path, "cost.device=cpuu")
    with pytest.raises(ConfigError, match="make it with hyperparallel profile"):
        loaded(tmp_path, f"cost.measured={json.dumps(str(tmp_path / 'none.json'))}")
