"""The runner that a configuration asks for, and what a device cannot do."""

import pytest
from training_config import write_config

from hyperparallel.errors import ConfigError
from hyperparallel.training.build import build_feed, build_layers, column_specs
from hyperparallel.training.config import load_config
from hyperparallel.training.planning import build_plan
from hyperparallel.training.runners import check_runner, recomputed

GRAPH = "run.mode=graph"
ANNOTATE, LINE = "run.mode=annotate", "schedule=1f1b(vision+llm)"


def load(tmp_path, *overrides):
    return load_config(write_config(tmp_path), overrides)


def refuse(tmp_path, device, *overrides):
    config = load(tmp_path, *overrides)
    with pytest.raises(ConfigError) as error:
        check_runner(config, build_plan(config, build_layers(config)), device)
    return str(error.value)


@pytest.mark.parametrize(
    ("device", "overrides", "said"),
    [
        ("CPU", [GRAPH], ("no CPU kernel", "run.mode: stepwise", "hyperparallel dryrun", "run.wires: pair_sum")),
        ("CPU", ["run.mode=annotate", "schedule=1f1b(vision+llm)"], ("no CPU kernel", "run.mode: stepwise")),
        ("CPU", [GRAPH, "run.wires=pair_sum", "run.dtype=bfloat16"], ("bfloat16", "float16 or float32")),
        ("CPU", ["run.dtype=float16", "run.jit=false"], ("float16 needs run.jit: true",)),
        ("CPU", ["run.dtype=bfloat16"], ("bfloat16", "run.mode: graph on Ascend", "float16 or float32")),
        ("Ascend", [GRAPH, "training.accumulate=2"], ("accumulate = 2", "micro_batches to 4", "same numbers")),
        ("Ascend", [ANNOTATE, LINE, "checkpoint.every=1"], ("checkpoint.every = 1", "graph or stepwise")),
        ("Ascend", [ANNOTATE, LINE, "model.llm.dropout=0.1"], ("dropout = 0.1", "graph or stepwise")),
        ("Ascend", [ANNOTATE, LINE, "resume=x"], ("resume = 'x'", "graph or stepwise")),
        ("Ascend", [GRAPH, "run.trace_step=1"], ("run.trace_step", "run.mode: stepwise")),
        ("Ascend", [GRAPH, "run.recompute=[7]"], ("stage 7", "0 to 3")),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(tmp_path, device, overrides, said):
    message = refuse(tmp_path, device, *overrides)
    for words in said:
        assert words in message


@pytest.mark.parametrize(
    ("device", "overrides"),
    [
        ("CPU", []),
        ("CPU", ["run.dtype=float16", "run.recompute=[0]", "training.accumulate=2", "training.batch_size=10"]),
        ("CPU", [GRAPH, "run.wires=pair_sum"]),
        ("CPU", [GRAPH, "parallel.ranks=1", "schedule=1f1b(vision+llm)"]),
        ("Ascend", [GRAPH, "run.dtype=bfloat16", "run.recompute=all"]),
    ],
)
def test_what_can_run_passes(tmp_path, device, overrides):
    config = load(tmp_path, *overrides)
    check_runner(config, build_plan(config, build_layers(config)), device)


def test_recompute_names_stages(tmp_path):
    for text, stages in (("all", (0, 1, 2, 3)), ("[1, 3]", (1, 3)), ("[]", ())):
        config = load(tmp_path, GRAPH, f"run.recompute={text}")
        assert recomputed(config, build_plan(config, build_layers(config))) == stages


def test_a_graph_is_fed_micro_batches_of_the_declared_shapes(tmp_path):
    config = load(tmp_path, GRAPH, "data.max_images=2", "model.llm.max_length=16", "run.max_images=9")
    specs = column_specs(config)
    feed = build_feed(config, "train")
    for m in range(config.training.micro_batches):
        for name, array in feed.micro_batch(0, m, list(specs)).items():
            assert (array.shape, str(array.dtype)) == specs[name], name
    assert specs["pixel_values"].shape[0] == 9


def test_a_text_model_has_no_pixels(tmp_path):
    config = load(tmp_path, GRAPH)
    text = config.model_copy(update={"model": config.model.model_copy(update={"vision": None})})
    assert set(column_specs(text)) == {"input_ids", "labels"}
