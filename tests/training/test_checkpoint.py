"""Saving and going on in one process; what is never loaded; what is kept; a full disk."""

import json
import logging
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_case import FACTS, tiny_runner, train, values
from safetensors.numpy import save_file

from hyperparallel import Transport
from hyperparallel.errors import CheckpointError
from hyperparallel.json_file import seal
from hyperparallel.training.checkpoint import Checkpoints, load_weights, restore
from hyperparallel.training.checkpoint_files import find_checkpoint, read_facts
from hyperparallel.training.stored import Stored

FULL_DISK = Path(__file__).with_name("checkpoint_full_disk.py")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Train three steps, save, and train three more: the run folder, its losses and its state at the end."""
    folder, runner = tmp_path_factory.mktemp("run"), tiny_runner()
    train(runner, 0, 3)
    Checkpoints(folder, 1, Transport()).save(runner, FACTS)
    at_save = values(runner)
    return folder, at_save, train(runner, 3, 6), values(runner)


@pytest.fixture
def run(saved, tmp_path):
    """Copy the run, to be damaged; its one checkpoint."""
    shutil.copytree(saved[0], tmp_path / "run")
    return tmp_path / "run/checkpoints/step_000003"


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def test_goes_on_to_the_bit(saved):
    folder, at_save, losses, state = saved
    runner = tiny_runner(seed=2)
    facts = restore(folder, runner)
    layout = {"ranks": 1, "data_parallel": 1, "tensor_parallel": 1}
    assert facts == {**FACTS, "step": 3, "updates": 3, "schedule": "1f1b(stem+net)", **layout}
    assert_equal(values(runner), at_save)
    assert any(value.any() for name, value in at_save.items() if name.startswith("optimizer.second."))
    assert train(runner, 3, 6) == losses
    assert_equal(values(runner), state)


def test_goes_back_in_a_runner_that_went_on(saved):
    folder, _, losses, _ = saved
    runner = tiny_runner()
    train(runner, 0, 5)
    restore(folder, runner)
    assert train(runner, 3, 6) == losses


def test_another_schedule_goes_on(saved):
    runner = tiny_runner("transpose(stem) >> gpipe(net)", seed=2)
    restore(saved[0], runner)
    np.testing.assert_allclose(train(runner, 3, 6), saved[2], rtol=1e-5)


def test_saving_changes_nothing(saved, tmp_path):
    runner = tiny_runner()
    train(runner, 0, 3)
    checkpoints = Checkpoints(tmp_path, 1, Transport())
    checkpoints.save(runner, FACTS)
    losses = train(runner, 3, 4)
    checkpoints.save(runner, FACTS)
    assert losses + train(runner, 4, 6) == saved[2]


def test_files_of_a_checkpoint(run):
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint.json", "worker_00.safetensors"]
    assert run.parent.stat().st_mode == run.stat().st_mode
    assert run.joinpath("worker_00.safetensors").stat().st_mode == run.joinpath("checkpoint.json").stat().st_mode


@pytest.mark.parametrize("which", ["run", "checkpoints", "checkpoint"])
def test_a_checkpoint_is_found_in_a_run(run, which):
    path = {"run": run.parents[1], "checkpoints": run.parent, "checkpoint": run}[which]
    assert find_checkpoint(path) == run
    assert read_facts(str(path))["samples"] == 24


def cut(run):
    file = run / "worker_00.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def other_format(run):
    index = json.loads((run / "checkpoint.json").read_text())
    (run / "checkpoint.json").write_text(json.dumps({**index, "format": 3}))


def outside(run):
    text = (run / "checkpoint.json").read_text()
    (run / "checkpoint.json").write_text(text.replace("worker_00.safetensors", "../worker_00.safetensors"))


DAMAGE = {
    "no index": (lambda run: (run / "checkpoint.json").unlink(), "is half-written: it has no checkpoint.json"),
    "half an index": (
        lambda run: (run / "checkpoint.json").write_text((run / "checkpoint.json").read_text()[:200]),
        "checkpoint.json is damaged or of another version: is not JSON (",
    ),
    "another format": (other_format, "checkpoint.json is damaged or of another version: format = 3: "),
    "no file": (
        lambda run: (run / "worker_00.safetensors").unlink(),
        "is not complete: worker_00.safetensors: No",
    ),
    "a file cut short": (cut, "bytes, and had"),
    "a file elsewhere": (outside, "checkpoint.json is damaged or of another version: bytes."),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("whole_run", [False, True])
def test_what_is_not_complete_is_never_loaded(run, kind, whole_run):
    damage, message = DAMAGE[kind]
    damage(run)
    runner = tiny_runner(seed=2)
    before = values(runner)
    with pytest.raises(CheckpointError) as caught:
        restore(run.parents[1] if whole_run else run, runner)
    assert message in str(caught.value) and str(run) in str(caught.value)
    assert_equal(values(runner), before)
    assert runner.step_number == 0


def rewrite(run, **change):
    """Change keys of an index, and seal it anew."""
    index = json.loads((run / "checkpoint.json").read_text())
    (run / "checkpoint.json").write_text(json.dumps(seal({**index, **change})))
    return index


def test_of_a_run_the_newest_complete_one_is_taken(run):
    for step in (7, 10):
        shutil.copytree(run, run.with_name(f"step_{step:06}"))
        rewrite(run.with_name(f"step_{step:06}"), step=step)
    shutil.copytree(run, run.with_name(".step_000020.part"))
    cut(run.with_name("step_000010"))
    assert find_checkpoint(run.parents[1]).name == "step_000007"


def test_a_folder_that_has_not_got_its_name_is_refused(run):
    run = run.rename(run.with_name(".step_000003.part"))
    with pytest.raises(CheckpointError, match="half-written: its job ended before it had its name"):
        find_checkpoint(run)
    with pytest.raises(CheckpointError, match=r"has no checkpoint .* \.step_000003\.part was being written"):
        find_checkpoint(run.parents[1])


FILE = "worker_00.safetensors"
ENTRY = {"shape": [3, 2], "files": [FILE], "crc32": [0], "cut": None}
CUT = {**ENTRY, "cut": {"axis": 0, "blocks": [3]}}
LIES = {
    "no facts": ({"facts": {}}, "'facts.seed' is missing; add it"),
    "facts of a wrong type": ({"facts": {**FACTS, "seed": "1"}}, "facts.seed = '1'"),
    "too many facts": ({"facts": {**FACTS, "mood": 1}}, "unknown key 'facts.mood'"),
    "another step": ({"step": 4}, "it is of step 4"),
    "more updates than steps": ({"updates": 4}, "4 updates were made in 3 steps"),
    "fewer samples than steps": ({"facts": {**FACTS, "samples": 1}}, "facts.samples = 1 were taken in 3 steps"),
    "a negative step": ({"step": -1}, "step = -1"),
    "a huge number": ({"step": 10**40, "updates": 0}, "step = 1"),
    "no schedule": ({"schedule": "1f1b(stem+"}, "schedule = '1f1b(stem+': this is no schedule line"),
    "no ranks": ({"ranks": 0}, "ranks = 0"),
    "a file too many": (
        {"bytes": {FILE: 0, "worker_01.safetensors": 0}, "ranks": 2},
        "worker_01.safetensors holds no tensor",
    ),
    "a file of no worker": ({"bytes": {FILE: 0, "worker_01.safetensors": 0}}, "worker_01.safetensors is of none of"),
    "parts of other workers": ({"tensor_parallel": 2, "tensors": {"a": CUT}}, "a is in 1 parts of 2 workers"),
    "tied to nothing": ({"tied": {"a": "b"}}, "a is tied to b"),
    "no checksum": ({"tensors": {"a": {**ENTRY, "crc32": []}}}, "a has 1 files and 0 checksums"),
    "in two files, not cut": ({"tensors": {"a": {**ENTRY, "files": [FILE] * 2, "crc32": [0, 0]}}}, "a is in 2 files"),
    "cut along no axis": ({"tensors": {"a": {**ENTRY, "cut": {"axis": 2, "blocks": [3]}}}}, "along axis 2"),
    "blocks of another size": (
        {"tensors": {"a": {**ENTRY, "cut": {"axis": 0, "blocks": [4]}}}},
        "is not made of blocks",
    ),
    "a moment of nothing": ({"tensors": {"optimizer.first.a": ENTRY}}, "is a moment of no weight"),
    "a file that is not listed": ({"tensors": {"a": {**ENTRY, "files": ["x"]}}}, "a is in files that it does not list"),
}


@pytest.mark.parametrize(("change", "said"), LIES.values(), ids=LIES)
def test_an_index_that_contradicts_itself_is_refused(run, change, said):
    rewrite(run, **change)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(run)
    assert said in str(caught.value) and "checkpoint.json" in str(caught.value), str(caught.value)


def test_a_changed_index_is_noticed(run):
    path = run / "checkpoint.json"
    text = path.read_text()
    path.write_text(text.replace('"samples": 24', '"samples": 25'))
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        find_checkpoint(run)
    index = json.loads(text)
    del index["sha256"]
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="'sha256' is missing"):
        find_checkpoint(run)


def test_one_of_an_earlier_version_is_read_with_a_warning(run, caplog):
    index = json.loads((run / "checkpoint.json").read_text())
    del index["sha256"]
    (run / "checkpoint.json").write_text(json.dumps({**index, "format": 1}))
    with caplog.at_level(logging.WARNING):
        assert restore(run, tiny_runner())["samples"] == 24
    assert [record.message for record in caplog.records] == [
        f"{run / 'checkpoint.json'} was written by an earlier version, without a checksum over itself"
    ]


def test_a_tensor_of_another_shape_is_noticed(run):
    index = json.loads((run / "checkpoint.json").read_text())
    tensors = {name: {**entry, "shape": entry["shape"][::-1]} for name, entry in index["tensors"].items()}
    rewrite(run, tensors=tensors)
    name = next(name for name, entry in tensors.items() if entry["shape"] != entry["shape"][::-1])
    with Stored(run) as stored, pytest.raises(CheckpointError, match=f"{name} has the shape"):
        stored.read(name)


def test_other_places_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="does not exist; give a run folder"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="is a file; give a run folder"):
        find_checkpoint(tmp_path / "file")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        find_checkpoint(tmp_path)


def test_a_byte_that_changed_is_noticed(run):
    file = run / "worker_00.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"worker_00.safetensors: .* checksum differs"):
        restore(run, tiny_runner())


def test_the_last_ones_are_kept(tmp_path):
    runner, checkpoints = tiny_runner(), Checkpoints(tmp_path, 2, Transport())
    for step in range(4):
        train(runner, step, step + 1)
        assert checkpoints.save(runner, {**FACTS, "samples": 100 + step}) == checkpoints.last
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_000003", "step_000004"]
    assert read_facts(tmp_path)["samples"] == 103


def test_what_a_killed_job_left_is_cleared_away(run, tmp_path):
    runner = tiny_runner()
    for name in (".step_000001.part", ".step_000002.old", ".step_000000.part"):
        shutil.copytree(run, run.with_name(name))
    Checkpoints(run.parents[1], 1, Transport()).save(runner, FACTS)
    # The newest by number is not of this job, which began anew; what it has just written stays all the same.
    assert sorted(path.name for path in run.parent.iterdir()) == ["step_000000"]


def test_the_same_step_is_written_anew(run):
    runner = tiny_runner(seed=5)
    runner.step_number = 3
    Checkpoints(run.parents[1], 1, Transport()).save(runner, {**FACTS, "seed": 9})
    assert [path.name for path in run.parent.iterdir()] == ["step_000003"]
    assert read_facts(run)["seed"] == 9


def test_facts_must_be_json(tmp_path):
    with pytest.raises(ValueError, match="finite number"):
        Checkpoints(tmp_path, 1, Transport()).save(tiny_runner(), {**FACTS, "loss_scale": [float("nan"), 0]})
    with pytest.raises(ValueError, match="samples"):
        Checkpoints(tmp_path, 1, Transport()).save(tiny_runner(), {"seed": 1})
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_file(run):
    """A file may not grow: what a quota does. The limit is the system's, the path of writing the real one."""
    runner = tiny_runner()
    train(runner, 0, 4)
    checkpoints = Checkpoints(run.parents[1], 3, Transport(), last=run)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    tensors, index = (run / name for name in ("worker_00.safetensors", "checkpoint.json"))
    assert tensors.stat().st_size < index.stat().st_size - 100
    for size in (256, tensors.stat().st_size + 8):  # nothing fits; the tensors do, but not the index
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(CheckpointError) as caught:
                checkpoints.save(runner, FACTS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for word in ("step_000004", "File too large", f"the last good one is intact: {run}", str(run.parent)):
            assert word in str(caught.value)
        assert [path.name for path in run.parent.iterdir()] == ["step_000003"]
    assert restore(run.parents[1], runner)["step"] == 3
    checkpoints.save(runner, FACTS)


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec {sys.executable} {FULL_DISK} {tmp_path}"
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a disk of their own; test_no_room_for_a_file still ran")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    good = f"{tmp_path}/checkpoints/step_000001"
    for word in ("worker 0 could not write step_000002", "No space left on device", f"one is intact: {good}"):
        assert word in facts["message"]
    assert facts["left"] == ["step_000001"]
    assert facts["restored"] == 1 and facts["equal"]


def test_weights_of_a_checkpoint_start_another_job(saved):
    folder, at_save, _, _ = saved
    runner = tiny_runner(seed=2)
    load_weights(folder, runner)
    for name, value in values(runner).items():
        expected = np.zeros_like(value) if name.startswith("optimizer.") else at_save[name]
        np.testing.assert_array_equal(value, expected, err_msg=name)
    assert (runner.step_number, runner.optimizer.updates) == (0, 0)


def test_weights_of_a_file_start_a_job(saved, tmp_path):
    weights = {name: value for name, value in saved[1].items() if not name.startswith("optimizer.")}
    save_file(weights, tmp_path / "model.safetensors")
    runner = tiny_runner(seed=2)
    load_weights(tmp_path / "model.safetensors", runner)
    assert_equal({name: value for name, value in values(runner).items() if name in weights}, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda w: w.pop("net.c.dense.bias"), "does not have net.c.dense.bias", id="missing"),
        pytest.param(lambda w: w.update(more=np.zeros(1)), "has more, which the model has not", id="extra"),
        pytest.param(
            lambda w: w.update({"net.c.dense.bias": np.zeros(2)}),
            r"net.c.dense.bias has the shape \(2,\), the model's has \(1,\)",
            id="shape",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(saved, tmp_path, change, message):
    weights = {name: value for name, value in saved[1].items() if not name.startswith("optimizer.")}
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    runner = tiny_runner(seed=2)
    before = values(runner)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_weights(tmp_path / "model.safetensors", runner)
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert_equal(values(runner), before)


def test_a_file_that_is_no_weights_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(CheckpointError, match="x.safetensors cannot be read"):
        load_weights(tmp_path / "x.safetensors", tiny_runner())
