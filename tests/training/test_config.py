"""The configuration: what is read, and one sentence with the place and the move for every mistake."""

import os
from pathlib import Path

import pytest
from training_config import LINES, write_config

from hyperparallel.cli import main
from hyperparallel.data import DigitsConfig
from hyperparallel.errors import ConfigError
from hyperparallel.training.config import Parallel, load_config

YAML = Path(__file__).parents[2] / "yaml"


def changed(old, new):
    assert LINES.count(old) == 1, old
    return LINES.replace(old, new)


FILES = {
    "unknown key": (changed("  steps: 3", "  stesp: 3"), ["line 22", "'training.stesp'", "did you mean 'steps'?"]),
    "unknown key, nothing near": (
        changed("  ranks: 2", "  zzz: 2"),
        ["line 3", "unknown key 'parallel.zzz'", "expected one of ranks, data_parallel"],
    ),
    "unknown section": (changed("data:", "dta:"), ["line 19", "unknown key 'dta'", "did you mean 'data'?"]),
    "unknown nested key": (
        changed("    depth: 1\n    heads: 2", "    dept: 1\n    heads: 2"),
        ["line 8", "unknown key 'model.vision.dept'", "did you mean 'depth'?"],
    ),
    "wrong type": (changed("steps: 3", "steps: many"), ["line 22", "training.steps = 'many'", "valid integer"]),
    "too small": (changed("steps: 3", "steps: 0"), ["line 22", "training.steps = 0", "greater than or equal to 1"]),
    "not finite": (changed("steps: 3", "steps: 3\n  lr: .inf"), ["line 23", "training.lr = inf", "finite number"]),
    "section is a value": (changed("  ranks: 2", "").replace("parallel:", "parallel: 2"), ["line 2", "parallel = 2"]),
    "section is empty, keys are missing": (
        LINES.partition("  steps:")[0],
        ["line 21: 'training.steps' is missing; add it"],
    ),
    "optional section is empty": (
        LINES.replace(LINES[LINES.index("    width: 16\n") : LINES.index("  llm:\n")], ""),
        ["line 6: 'model.vision.width' is missing; add it"],
    ),
    "a key without value": (changed("steps: 3", "steps:"), ["line 22: 'training.steps' has no value; give one"]),
    "a path without value": (LINES + "resume:\n", ["line 26: 'resume' has no value; give one, or leave the key out"]),
    "an empty path": (LINES + 'resume: ""\n', ["line 26: resume = ''", "an empty path"]),
    "boolean for a number": (changed("steps: 3", "steps: true"), ["line 22: training.steps = True", "valid integer"]),
    "boolean for a float": (changed("steps: 3", "steps: 3\n  lr: true"), ["training.lr = True", "valid number"]),
    "number for a boolean": (LINES + "run: {jit: 1}\n", ["run.jit = 1", "valid boolean", "write true or false"]),
    "word for a boolean": (LINES + "run: {jit: yes}\n", ["run.jit = 'yes'", "write true or false"]),
    "text for a number": (changed("steps: 3", 'steps: "3"'), ["training.steps = '3'", "without quotes"]),
    "number for a text": (LINES + "run: {out: 7}\n", ["run.out = 7", "valid string", "write it in quotes"]),
    "merge": (changed("  steps: 3", "  <<: {steps: 3}"), ["line 22: '<<' does not merge in YAML 1.2"]),
    "aliases without end": (
        LINES
        + "x: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"x{n}: &{b} [{','.join(['*' + a] * 10)}]\n"
            for n, (a, b) in enumerate(["ab", "bc", "cd", "de", "ef", "fg"])
        ),
        ["its aliases stand for more than 100000 values"],
    ),
    "too deep": (LINES + "x: " + "[" * 5000 + "\n", ["line 26: is nested too deeply; at most 32 levels"]),
    "too long": (LINES + "#" * 2**18, ["has more than 262144 bytes"]),
    "half a surrogate pair": (LINES + 'resume: "\\ud83d"\n', ["line 26: a text holds half of a surrogate pair"]),
    "missing section": (LINES.partition("training:")[0], ["'training' is missing; add it"]),
    "missing key": (changed("  steps: 3\n", ""), ["line 21", "'training.steps' is missing; add it"]),
    "duplicate key": (
        changed("  steps: 3", "  steps: 3\n  steps: 4"),
        ["line 23", "training.steps is given twice (first in line 22)"],
    ),
    "duplicate section": (LINES + "data:\n  max_images: 1\n", ["line 26", "data is given twice (first in line 19)"]),
    "not YAML": (changed("  ranks: 2", "  ranks: [2"), ["line ", "column ", "is not valid YAML"]),
    "a tab": (changed("  ranks: 2", "\tranks: 2"), ["line 3, column 1", "is not valid YAML"]),
    "two documents": (LINES + "---\na: 1\n", ["is not valid YAML", "line 26"]),
    "a list": ("- 1\n", ["holds list; expected sections"]),
    "empty": ("", ["holds nothing; expected sections"]),
    "refers to itself": (LINES + "a: &a\n  b: *a\n", ["refers to itself"]),
    "python object": (
        changed("steps: 3", "steps: !!python/object/apply:os.system ['touch EXECUTED']"),
        ["line 22", "is not valid YAML", "python/object/apply:os.system"],
    ),
    "python name": (changed("steps: 3", "steps: !!python/name:os.system"), ["line 22", "is not valid YAML"]),
    "number as key": (LINES + "7: x\n", ["line 26: the key '7' is no text; write it in quotes"]),
    "list as key": (LINES + "? [a, b]\n: x\n", ["is not valid YAML", "line 26"]),
    "betas out of range": (changed("steps: 3", "steps: 3\n  betas: [0.9, 1.0]"), ["line 23", "betas", "less than 1"]),
    "three betas": (changed("steps: 3", "steps: 3\n  betas: [0.9, 0.9, 0.9]"), ["line 23", "training.betas"]),
    "heads do not fit": (changed("width: 16", "width: 18"), ["line 6", "width 18", "multiple of"]),
    "images out of order": (changed("max_images: 1", "max_images: 1\n  min_images: 2"), ["line 19", "min_images is 2"]),
    "batch too small": (
        changed("batch_size: 8", "batch_size: 1"),
        ["batch_size 1", "2 micro-batches", "at least one sample", "raise batch_size to 2"],
    ),
    "too many replicas": (
        changed("ranks: 2", "ranks: 2\n  data_parallel: 5"),
        ["batch_size 8", "5 replicas", "raise batch_size to 10"],
    ),
    "passes do not divide": (
        changed("batch_size: 8", "batch_size: 8\n  accumulate: 3"),
        ["batch_size = 8", "accumulate = 3", "make it a multiple"],
    ),
    "starts twice": (LINES + "resume: a\ninit_from: b\n", ["init_from = 'b'", "resume = 'a'", "leave init_from out"]),
    "freezes nothing": (
        changed("  image_token: 3", '  image_token: 3\n  freeze: ["vison.*"]'),
        ["model.freeze names 'vison.*'", "vision.patch .. llm.head", "vision.*"],
    ),
    "shards do not divide": (
        changed("ranks: 2", "ranks: 2\n  tensor_parallel: 4"),
        ["vision.heads 2", "not a multiple of tensor_parallel 4", "e.g. vision.heads 4"],
    ),
    "image sizes differ": (
        changed("max_images: 1", "max_images: 1\n  image_size: 16"),
        ["model.vision takes 1 x 8 x 8", "1 x 16 x 16", "make model.vision.image_size and data.image_size equal"],
    ),
    "colour images": (changed("width: 16", "width: 16\n    channels: 3"), ["takes 3 x 8 x 8 images"]),
    "max_length too small": (
        changed("max_images: 1", "max_images: 2"),
        ["model.llm.max_length is 8", "data.max_images = 2", "16 tokens", "raise max_length or lower max_images"],
    ),
    "vocabulary too small": (changed("vocab_size: 16", "vocab_size: 15"), ["vocab_size is 15", "16 words"]),
    "image token": (changed("image_token: 3", "image_token: 4"), ["model.image_token is 4; the digits data use 3"]),
    "text-only model, images": (
        LINES.replace(LINES[LINES.index("  vision:\n") : LINES.index("  llm:\n")], ""),
        ["model.vision is missing but data.max_images is 1; add the section or set it to 0"],
    ),
    "unknown skeleton": (
        changed("1f1b(llm)", "2f2b(llm)"),
        ["transpose(vision) >> 2f2b(llm)\n", "                     ^", "1f1b"],
    ),
    "unknown part": (changed("1f1b(llm)", "1f1b(lmm)"), ["lmm", "llm"]),
    "more ranks than layers": (changed("ranks: 2", "ranks: 9"), ["9"]),
    "no held-out images": (
        changed("max_images: 1", "max_images: 1\n  held_out: 0.0") + "evaluation:\n  samples: 8\n",
        ["held_out is 0.0", "set it to 0.2"],
    ),
}
OVERRIDES = {
    "no sign": (["training.steps"], ["override 'training.steps' is not of the form section.key=value"]),
    "no key": (["=3"], ["override '=3' is not of the form section.key=value"]),
    "no name": (["training..steps=3"], ["is not of the form section.key=value"]),
    "unknown": (["training.stesp=3"], ["override 'training.stesp=3': unknown key 'training.stesp'", "'steps'?"]),
    "unknown section": (["trainign.steps=3"], ["unknown key 'trainign'", "did you mean 'training'?"]),
    "into a value": (["schedule.x=3"], ["override 'schedule.x=3': 'schedule' is a value, not a section"]),
    "not YAML": (["run.out=[a"], ["override 'run.out=[a': '[a' is not a YAML value; quote it"]),
    "wrong type": (["training.steps=many"], ["override 'training.steps=many': training.steps = 'many'"]),
    "wrong inside": (["training.betas=[0.5,x]"], ["override 'training.betas=[0.5,x]': training.betas.1 = 'x'"]),
    "a whole section": (["model.vision={width: 16}"], ["override 'model.vision={width: 16}'", "'model.vision.depth'"]),
    "makes sizes not fit": (["model.vision.width=18"], ["line 6 with override 'model.vision.width=18'", "width 18"]),
    "python object": (["training.steps=!!python/object/apply:os.system [ls]"], ["is not a YAML value"]),
    "nothing": (["resume="], ["override 'resume=' has no value after the =; write resume=null to turn the key off"]),
    "a comment": (["training.steps=#3"], ["override 'training.steps=#3' has no value after the ="]),
    "a comment behind": (["run.out=a # b"], ["'# b' is no part of the value"]),
    "an empty path": (['run.out=""'], ["run.out = ''", "an empty path"]),
    "no such user": (["run.out=~no_such_user/x"], ["there is no home folder of '~no_such_user'; write ./~no_such"]),
    "given twice": (["parallel={ranks: 1, ranks: 2}"], ["ranks is given twice"]),
    "base 60": (["training.steps=1:30"], ["training.steps = '1:30'", "valid integer"]),
    "yes": (["training.lr=yes"], ["training.lr = 'yes'", "valid number"]),
    "on": (["training.batch_size=on"], ["training.batch_size = 'on'", "valid integer"]),
    "half a surrogate pair": (['run.out="\\udc00"'], ["a text holds half of a surrogate pair"]),
    "too many ranks": (["parallel.ranks=1999000000000"], ["parallel.ranks = 1999000000000", "or equal to 4096"]),
    "too many workers": (
        ["parallel.ranks=64", "parallel.data_parallel=65"],
        ["ranks 64 x data_parallel 65 x tensor_parallel 1 makes 4160 workers; at most 4096 are supported"],
    ),
    "too many slabs": (
        ['schedule="transpose(vision) >> 1f1b(llm)*4000"'],
        ["parallel.ranks 2 x 4000 (of *4000) makes 8000 slabs; at most 4096"],
    ),
    "too many cells": (
        ["parallel.ranks=4096", "training.micro_batches=123"],
        ["parallel.ranks 4096 x training.micro_batches 123 makes 503808 cells; at most 500000"],
    ),
    "too deep a model": (["model.llm.depth=1000000000"], ["model.llm.depth = 1000000000", "or equal to 10000"]),
    "too large a model": (
        ["model.llm.width=1048576", "model.llm.heads=1024", "model.llm.depth=1000"],
        ["model.llm", "parameters; at most 1e+13 are taken"],
    ),
    "too many images": (
        ["data.max_images=10000", "data.image_size=800"],
        ["max_images 10000 of 1 x 800 x 800 are 6400000000 values a sample; at most 2147483648"],
    ),
    "the later one counts": (["training.steps=1", "training.steps=0"], ["override 'training.steps=0'"]),
}


def refused(capsys, monkeypatch, path, *overrides):
    """Run `train` with a mistake; return its sentence, after checking that nothing was started or made."""
    monkeypatch.setattr("hyperparallel.training.job.start_job", lambda *_: pytest.fail("a job was started"))
    monkeypatch.setattr("os.system", lambda *_: pytest.fail("a command was run"))
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    assert main(["train", str(path), *overrides]) == 2
    out, err = capsys.readouterr()
    assert before is None or sorted(path.parent.iterdir()) == before
    assert out == "" and err.startswith("hyperparallel: ") and "Traceback" not in err
    return err


@pytest.mark.parametrize(("text", "words"), FILES.values(), ids=FILES)
def test_mistakes_in_the_file(capsys, monkeypatch, tmp_path, text, words):
    path = tmp_path / "tiny.yaml"
    path.write_text(text)
    said = refused(capsys, monkeypatch, path)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(("overrides", "words"), OVERRIDES.values(), ids=OVERRIDES)
def test_mistakes_in_overrides(capsys, monkeypatch, tmp_path, overrides, words):
    said = refused(capsys, monkeypatch, write_config(tmp_path), *overrides)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot be read (No such file or directory); give an existing YAML file"),
        (os.mkdir, "cannot be read (Is a directory); give an existing YAML file"),
        (lambda path: path.write_bytes(b"a: \xff\xfe"), "is not a text file in UTF-8"),
        (lambda path: path.write_bytes(b"a: \x00"), "is not valid YAML"),
    ],
    ids=["missing", "directory", "binary", "zero byte"],
)
def test_files_that_cannot_be_read(capsys, monkeypatch, tmp_path, make, words):
    path = tmp_path / "tiny.yaml"
    make(path)
    said = refused(capsys, monkeypatch, path)
    assert words in said and str(path) in said


def test_a_run_folder_that_is_a_file(capsys, monkeypatch, tmp_path):
    (tmp_path / "runs").write_text("")
    assert f"run.out = '{tmp_path / 'runs'}'" in refused(capsys, monkeypatch, write_config(tmp_path))


def test_overrides_change_values_and_the_last_one_wins(tmp_path):
    overrides = ["training.steps=9", "training.lr=1e-2", "training.steps=8", "data.mix=long_tail", "run.jit=false"]
    config = load_config(write_config(tmp_path), [*overrides, "evaluation.samples=4", "training.betas=[0.5, 0.6]"])
    assert (config.training.steps, config.training.lr, config.training.betas) == (8, 0.01, (0.5, 0.6))
    assert (config.data.mix, config.run.jit, config.evaluation.samples) == ("long_tail", False, 4)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("training.seed=010", 10),
        ("training.seed=0o10", 8),
        ("training.seed=0x10", 16),
        ("training.lr=5e-1", 0.5),
        ("training.lr=1", 1.0),
        ("run.out=2026-11-30", "2026-11-30"),
        ("run.out=on", "on"),
        ('run.out="\\ud83d\\ude00"', "\U0001f600"),
        ("run.out=\U0001f600", "\U0001f600"),
        ("run.out=./~", "./~"),
        ("data.seed=1099511627776", 2**40),
    ],
)
def test_values_are_those_of_yaml_1_2(tmp_path, override, value):
    (tmp_path / "line").mkdir()
    name, _, text = override.partition("=")
    section, key = name.split(".")
    path = tmp_path / "tiny.yaml"
    path.write_text(LINES.replace(f"{section}:\n", f"{section}:\n  {key}: {text}\n"))
    if section == "run":
        path.write_text(f"{LINES}run:\n  {key}: {text}\n")
    for config in (load_config(write_config(tmp_path / "line"), [override]), load_config(path)):
        found = getattr(getattr(config, section), key)
        assert found == value and type(found) is type(value)


def test_a_section_with_nothing_under_it_has_its_defaults(tmp_path):
    sections = ("evaluation", "cost", "planner", "checkpoint", "run")
    path = tmp_path / "tiny.yaml"
    lines = changed("  max_images: 1\n", "").replace("max_length: 8", "max_length: 40").replace("  ranks: 2\n", "")
    path.write_text(lines + "".join(f"{name}:\n" for name in sections))
    config = load_config(path)
    for name in sections:
        section = getattr(config, name)
        assert section == type(section)(), name
    assert config.data == DigitsConfig() and config.parallel == Parallel()
    assert load_config(path, ["evaluation.samples=4"]).evaluation.samples == 4


def test_the_home_folder_is_where_a_tilde_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    keys = ("run.out", "resume", "planner.file", "cost.measured", "data.path", "data.held_out_path", "data.images")
    config = load_config(write_config(tmp_path), ["data.source=files", *(f"{key}=~/x" for key in keys)])
    for key in keys:
        value = config
        for part in key.split("."):
            value = getattr(value, part)
        assert value == "/home/me/x", key
    more = load_config(write_config(tmp_path), ["init_from=~/y", "cost.device=~/z"])
    assert (more.init_from, more.cost.device) == ("/home/me/y", "/home/me/z")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config("~/tiny.yaml").training.steps == 3


def test_defaults_are_those_of_the_schema(tmp_path):
    config = load_config(write_config(tmp_path))
    assert (config.parallel.data_parallel, config.training.clip_norm, config.run.mode) == (1, 1.0, "stepwise")
    assert config.parallel.tensor_parallel == 1 and config.parallel.topology.workers == 2
    assert config.model.vision.trainable and config.evaluation.samples == 0


@pytest.mark.parametrize("path", sorted(YAML.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_load(path):
    load_config(path)


def test_errors_of_the_library_are_config_errors(tmp_path):
    with pytest.raises(ConfigError):
        load_config(tmp_path / "nowhere.yaml")
