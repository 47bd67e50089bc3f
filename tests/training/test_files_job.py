"""A job on files of which some are bad: both ranks leave out the same lines, name and count them, and load ahead."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from training_config import FILES, LINES, write_config

BAD = {3: "gone.png", 5: "cut.png", 12: "moving.png"}
LENIENT = FILES + "  shuffle: false\n  on_error: skip\n"


@pytest.fixture
def config(tmp_path):
    """Sixteen lines, of which three are bad."""
    for name in ("good.png", "cut.png"):
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(tmp_path / name)
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 99)]
    frames[0].save(tmp_path / "moving.png", save_all=True, append_images=frames[1:])
    with (tmp_path / "train.jsonl").open("w") as file:
        for number in range(1, 17):
            image = {"prompt": "<image> reads", "response": "one", "images": [BAD.get(number, "good.png")]}
            line = image if number % 4 else {"prompt": "reads", "response": "nothing two" if number % 3 else "six"}
            file.write(json.dumps({**image} if number in BAD else line) + "\n")
    text = LINES.replace("data:\n  max_images: 1\n", LENIENT.format(folder=tmp_path))
    return write_config(tmp_path, text)


@pytest.mark.slow
def test_bad_files_are_left_out_alike_and_counted(config, tmp_path):
    command = [shutil.which("hyperparallel", path=str(sys.executable).rpartition("/")[0]), "train", str(config)]
    command += ["run.trace_step=1", "training.steps=5", "evaluation.samples=20"]
    command += [f"data.held_out_path={tmp_path}/train.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # Samples 0 to 7 meet lines 3 and 5, 8 to 15 line 12; then they are known.
    assert [line["skipped"] for line in lines] == [2, 3, 3, 3, 3]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["skipped"] == 3 and summary["samples"] == 13
    assert done.stdout.splitlines()[-1].endswith(" of 13 samples (of 20 asked for: no others can be used)")
    assert all(0 <= line["data_wait"] <= line["step_time"] for line in lines)
    for rank in range(2):
        log = (folder / f"logs/worker_{rank}.log").read_text()
        for number, name in BAD.items():
            assert log.count(f"skipped train.jsonl, line {number}: image '{name}'") == 1, log
    content = json.loads((folder / "trace.json").read_text())
    loads = [event for event in content["traceEvents"] if event["name"].startswith("load step")]
    assert {event["pid"] for event in loads} == {1, 2} and all(int(e["name"].split()[-1]) > 1 for e in loads)
