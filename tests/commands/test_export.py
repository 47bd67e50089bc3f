"""`hyperparallel export`: one file of a checkpoint, and where it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from hyperparallel.cli import main
from hyperparallel.tensors import Shard, slice_parameter
from hyperparallel.training.checkpoint_files import write_index, write_tensors
from hyperparallel.training.checkpoint_index import Cut, Entry, Facts, Index
from hyperparallel.training.stored import checksum

RNG = np.random.default_rng(0)
WHOLE = {
    "embed.weight": RNG.standard_normal((4, 3)).astype(np.float32),
    "block.matrix": RNG.standard_normal((6, 2)).astype(np.float32),
    "optimizer.first.embed.weight": RNG.standard_normal((4, 3)).astype(np.float32),
}
CUT = Shard(0, (4, 2))


def write_checkpoint(run: Path) -> Path:
    """Write a checkpoint of two workers that share a matrix."""
    folder = run / "checkpoints/step_000012"
    folder.mkdir(parents=True)
    parts = [slice_parameter(WHOLE["block.matrix"], CUT, index, 2) for index in range(2)]
    tensors = [{**WHOLE, "block.matrix": parts[0]}, {"block.matrix": parts[1]}]
    files = [f"worker_0{worker}.safetensors" for worker in range(2)]
    for file, content in zip(files, tensors, strict=True):
        write_tensors(folder / file, content, {})
    entries = {
        name: Entry(shape=value.shape, files=files[:1], crc32=[checksum(value)]) for name, value in WHOLE.items()
    }
    entries["block.matrix"] = Entry(
        shape=(6, 2), files=files, crc32=[checksum(part) for part in parts], cut=Cut(axis=CUT.axis, blocks=CUT.blocks)
    )
    index = Index(
        step=12,
        updates=12,
        schedule="1f1b(a)",
        ranks=1,
        data_parallel=1,
        tensor_parallel=2,
        facts=Facts(seed=0, samples=96, loss_scale=(1.0, 0)),
        tied={"head.weight": "embed.weight"},
        bytes={file: (folder / file).stat().st_size for file in files},
        tensors=entries,
    )
    write_index(folder, index)
    return folder


@pytest.fixture
def run(tmp_path):
    write_checkpoint(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("source", ["run", "run/checkpoints/step_000012"])
def test_weights_are_joined_in_one_file(run, capsys, source):
    out = run.parent / "model.safetensors"
    assert main(["export", str(run.parent / source), str(out)]) == 0
    loaded = load_file(out)
    assert sorted(loaded) == ["block.matrix", "embed.weight"]
    for name, value in loaded.items():
        np.testing.assert_array_equal(value, WHOLE[name])
    with safe_open(out, "numpy") as opened:
        about = json.loads(opened.metadata()["hyperparallel"])
    assert about == {"step": 12, "schedule": "1f1b(a)", "tied": {"head.weight": "embed.weight"}}
    folder = run / "checkpoints/step_000012"
    assert capsys.readouterr().out == f"{out}: 2 tensors, 96 bytes, of {folder} (step 12)\n"
    assert sorted(path.name for path in run.parent.iterdir()) == ["model.safetensors", "run"]


def test_the_optimizer_comes_too_when_asked_for(run):
    out = run.parent / "model.safetensors"
    assert main(["export", str(run), "--optimizer", str(out)]) == 0
    assert {name: value.tolist() for name, value in load_file(out).items()} == {
        name: value.tolist() for name, value in WHOLE.items()
    }


def test_a_file_is_replaced_only_by_force(run, capsys):
    out = run.parent / "model.safetensors"
    out.write_text("mine")
    assert main(["export", str(run), str(out)]) == 2
    assert "exists; give another name, or --force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["export", "--force", str(run), str(out)]) == 0
    assert "embed.weight" in load_file(out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param([], "export needs RUN and OUT.safetensors, got 0 words", id="no words"),
        pytest.param(["run"], "got 1 words", id="no place"),
        pytest.param(["run", "a", "--force", "b"], "got 3 words", id="too many"),
        pytest.param(["nowhere", "a"], "nowhere does not exist; give a run folder", id="no run"),
        pytest.param([".", "a"], "has no checkpoint", id="no checkpoint"),
        pytest.param(["run", "run"], "run is a folder; give the name of a file", id="a folder"),
        pytest.param(["run", "/dev/null", "--force"], "/dev/null is no regular file", id="a device"),
        pytest.param(["run", "no/a"], "no is not a folder; make it first", id="no folder"),
    ],
)
def test_mistakes(run, monkeypatch, capsys, words, message):
    monkeypatch.chdir(run.parent)
    assert main(["export", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_a_full_disk_leaves_nothing(run):
    code = (
        "import resource, sys; from hyperparallel.cli import main; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64));"
        f"sys.exit(main(['export', {str(run)!r}, {str(run / 'model.safetensors')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "model.safetensors cannot be written" in done.stderr
    assert [path.name for path in run.iterdir()] == ["checkpoints"]


def test_mindspore_is_not_imported(run):
    words = ["export", str(run), str(run / "model.safetensors")]
    code = f"import sys; from hyperparallel.cli import main; main({words!r}); sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
