"""Every number of every file has an upper limit, every section its rules, and every path its home folder."""

import json
import logging

import pytest

from hyperparallel.algebra import ModelSpec
from hyperparallel.cells.transport import Transport
from hyperparallel.cli import main
from hyperparallel.cost import PartCost, costs_from_parts
from hyperparallel.cost.device import Device, find_yaml, load_device
from hyperparallel.cost.measured import MeasuredCosts
from hyperparallel.cost.presets import ModelFile
from hyperparallel.errors import ConfigError
from hyperparallel.limits import check_parameters, check_sample
from hyperparallel.paths import expand_home
from hyperparallel.planner import plan_line
from hyperparallel.planner.line import Settings
from hyperparallel.planner.plan_file import PlanFile
from hyperparallel.planner.scenario import Scenario
from hyperparallel.schema import Strict
from hyperparallel.training.agree import share_texts
from hyperparallel.training.checkpoint_index import Index
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.memory_profile import LayerBytesFile
from hyperparallel.training.planning import hand_over
from mindformers_patch.block import Block

FILES = (Config, Device, ModelFile, Scenario, Block, PlanFile, MeasuredCosts, Index, LayerBytesFile)


def numbers(schema, where=""):
    """List the numbers in a JSON schema that have no upper limit."""
    found = []
    if isinstance(schema, dict):
        open_ = schema.get("type") in ("integer", "number")
        open_ = open_ and not {"maximum", "exclusiveMaximum", "enum", "const"} & set(schema)
        found += [where] if open_ else []
        for key, inner in schema.items():
            found += numbers(inner, f"{where}.{key}")
    elif isinstance(schema, list):
        for inner in schema:
            found += numbers(inner, where)
    return found


@pytest.mark.parametrize("model", FILES, ids=lambda model: model.__name__)
def test_every_number_has_an_upper_limit(model):
    assert numbers(model.model_json_schema()) == []


def test_the_search_for_numbers_finds_one_without():
    class Open(Strict):
        size: int
        rate: dict[str, float]

    assert len(numbers(Open.model_json_schema())) == 2


def sections(model, found=None):
    """List a model and all models inside."""
    schemas = model.model_json_schema()
    return [schemas, *schemas.get("$defs", {}).values()]


@pytest.mark.parametrize("model", FILES, ids=lambda model: model.__name__)
def test_every_section_refuses_keys_it_does_not_know(model):
    assert all(one["additionalProperties"] is False for one in sections(model) if one.get("type") == "object")


def test_limits_of_products():
    check_sample(images=2, channels=1, side=2**15)
    with pytest.raises(ValueError, match="at most 2147483648 are taken"):
        check_sample(images=3, channels=1, side=2**15)
    check_parameters(10**13)
    with pytest.raises(ValueError, match=r"about 2\.0e\+13 parameters; at most 1e\+13"):
        check_parameters(2 * 10**13)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("float32: 0.083", "float32: 0"), "peak_tflops.float32 = 0: input should be greater than or equal to 1e-09"),
        (
            ("devices_per_node: 256", "devices_per_node: true"),
            "devices_per_node = True: input should be a valid",
        ),
        (
            ("devices_per_node: 256", "devices_per_node: 1e9"),
            "devices_per_node = 1000000000.0: input should be",
        ),
        (("memory_gib: 8 ", "memory_gib: 1e30 "), "memory_gib = 1e+30: input should be less than or equal to 1e+12"),
        (("name: CPU, one core", "name:"), "line 3: 'name' has no value; give one"),
        (("name: CPU, one core", "name: yes\nname: no"), "line 4: name is given twice (first in line 3)"),
    ],
)
def test_a_device_file_is_read_by_the_same_rules(tmp_path, change, words):
    text = find_yaml("cpu", "devices", "device").read_text()
    assert text.count(change[0]) == 1
    (tmp_path / "x.yaml").write_text(text.replace(*change))
    with pytest.raises(ConfigError) as error:
        load_device(tmp_path / "x.yaml")
    assert words in str(error.value)


def test_paths_of_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~") == str(tmp_path) and expand_home("~/a/~b") == f"{tmp_path}/a/~b"
    assert expand_home("./~/a") == "./~/a" and expand_home("a~") == "a~"
    (tmp_path / "x.yaml").write_text("name: x\n")
    with pytest.raises(ConfigError, match="x.yaml: 'peak_tflops' is missing"):
        load_device("~/x.yaml")
    with pytest.raises(ConfigError, match="is not a file"):
        load_device("x" * 5000)


PLAN = ["plan", "--schedule", "1f1b(llm)", "--ranks", "2", "--micro-batches", "2", "--cost", "llm=1/2"]


@pytest.mark.parametrize(
    "words",
    [
        *([*PLAN, option, ""] for option in ("--out", "--figure", "--trace", "--memory-figure")),
        ["plot", ""],
        ["plot", "run", "--out", ""],
        ["check", "", "--ranks", "1", "--micro-batches", "1"],
        ["export", "", "x.safetensors"],
        ["export", "run", " "],
        ["train", ""],
        ["dryrun", "x.yaml", "--keep", ""],
        ["bench", "--emulate", "--out", ""],
        ["profile", "x.yaml", "--out", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(capsys, words):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("hyperparallel: ") and "an empty path" in said and said.count("\n") == 1


def test_files_are_written_into_the_home_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main([*PLAN, "--trace=~/trace.json"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_plan_is_handed_over_through_any_folder(tmp_path):
    parts = {"vision": PartCost(12, 0), "llm": PartCost(4, 8)}
    line = "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
    sizes = {"vocab_size": 2, "width": 2, "depth": 1, "heads": 1, "kv_heads": 1, "ffn": 2, "max_length": 2}
    model = ModelSpec.of({"vision": 4, "llm": 8}, frozen={"vision"})
    planned = plan_line(line, model, 2, 2, lambda plan: costs_from_parts(plan, parts), Settings(engine="list"))
    folder = tmp_path / "\U0001f600 é: #1"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(
        json.dumps(
            {
                "schedule": line,
                "model": {"llm": sizes, "image_token": 0},
                "training": {"steps": 1, "batch_size": 2, "micro_batches": 2},
                "run": {"out": str(folder)},
            }
        )
    )
    config = load_config(folder / "tiny.yaml", hand_over(planned, folder))
    assert config.planner.file == str(folder / "plan.json") and config.run.out == str(folder)


def test_workers_tell_each_other_names_that_are_no_text():
    assert share_texts(Transport(), "/data/\udcff") == {0: "/data/\udcff"}


def test_planning_that_takes_long_says_so_beforehand(caplog, monkeypatch):
    monkeypatch.setattr("hyperparallel.planner.line._LONG_S", 0)
    with caplog.at_level(logging.WARNING):
        assert (
            main([*PLAN[:2], "transpose(vision, owner=balanced) >> 1f1b(llm)", *PLAN[3:-1], "vision=1/2,llm=1/2"]) == 0
        )
    assert "planning transpose(vision, owner=balanced) >> 1f1b(llm) with P = 2, M = 2 takes about 0 s" in caplog.text
