"""A real step's trace: a job by hand under `msrun`, and what travels between its ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from training_config import write_config

from hyperparallel import ModelSpec, Transport, derive
from hyperparallel.cells.walk import Record
from hyperparallel.data.loads import Loads
from hyperparallel.errors import ConfigError
from hyperparallel.training.config import load_config
from hyperparallel.training.launch import end_job
from hyperparallel.training.plan_config import plan_from_config
from hyperparallel.training.trace import BOTH, MEASURED, PREDICTED, gather_records, sum_integers
from hyperparallel.training.trainer import train


class Summing(Transport):
    """A transport whose sums are those of float32, as on the wire."""

    def sum(self, values, ranks):
        assert values.dtype == np.float32
        return values + np.zeros_like(values)


def test_integers_arrive_to_the_last_bit():
    values = np.array([[0, 1, 2**21 - 1], [2**21, 1_785_000_000_123_456_789, 2**63 - 1]])
    np.testing.assert_array_equal(sum_integers(Summing(), values), values)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "run.trace_step = 3 is not a step; training.steps = 3 runs 0 to 2"),
        ("-1", "run.trace_step = -1: input should be greater than or equal to 0"),
    ],
)
def test_a_step_that_does_not_run_is_refused(tmp_path, value, words):
    with pytest.raises(ConfigError, match=words):
        load_config(write_config(tmp_path), [f"run.trace_step={value}"])


def slices(content, kinds):
    return [e for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] != "data" and e["args"]["kind"] in kinds]


def loading(content):
    """Return what was done for the data, as (rank, name, start, end) in seconds."""
    found = [e for e in content["traceEvents"] if e.get("cat") == "data"]
    return [(e["pid"] - 1, e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in found]


def test_loads_about_the_step_come_with_its_records_on_one_clock():
    plan = derive("gpipe(llm)", ModelSpec.of({"llm": 2}), 1, 2)
    loads = Loads()
    for step in range(6):  # the next one is being made while the step waits
        with loads.making(step):
            time.sleep(0.002)
    with loads.waiting(4):
        time.sleep(0.01)
    records, zero = [], time.perf_counter()
    with loads.making(6):
        for action in plan.programs[0]:
            start = time.perf_counter() - zero
            time.sleep(0.001)
            records.append(Record(action, start, time.perf_counter() - zero))
        runner = SimpleNamespace(
            plan=plan, records=records, replica=0, shard=0, rank=0, walked=time.perf_counter(), transport=Summing()
        )
        ((got,), (about,)) = gather_records(runner, loads, 4)
    assert [record.action for record in got] == list(plan.programs[0])
    assert got[0].end - got[0].start == pytest.approx(records[0].end - records[0].start, abs=1e-6)
    ((name, begin, end),) = about.waits
    assert (name, begin) == ("wait for data", 0.0) and 0.01 <= end <= got[0].start
    ((name, begin, end),) = about.loads  # those before the wait are over, the one that runs reaches to now
    assert name == "load step 6" and begin <= got[0].start and end >= got[-1].end - 1e-4
    ((alone,), nothing) = gather_records(runner)
    assert nothing == [] and alone[0].start == 0.0 and [record.action for record in alone] == list(plan.programs[0])


@pytest.mark.slow
def test_one_process(tmp_path):
    config = load_config(write_config(tmp_path), ["parallel.ranks=1", "run.jit=false", "run.trace_step=1"])
    train(config, Transport(), tmp_path)
    content = json.loads((tmp_path / MEASURED).read_text())
    assert len(slices(content, "F")) == 4 and len(slices(content, "B")) == 4
    assert sum(name == "wait for data" for _, name, _, _ in loading(content)) == 1


@pytest.mark.slow
def test_two_ranks_by_hand(tmp_path):
    path = write_config(tmp_path)
    msrun = shutil.which("msrun", path=str(Path(sys.executable).parent))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GLOG_v": "3"}
    environment |= {"OMP_NUM_THREADS": "1"}
    environment.pop("HYPERPARALLEL_RUN_FOLDER", None)
    command = [msrun, "--worker_num=2", "--local_worker_num=2", "--master_port=8217", "--join=True"]
    command += [f"--log_dir={tmp_path / 'log'}", "python", "-m", "hyperparallel", "train", str(path)]
    with open(tmp_path / "msrun.log", "wb") as file:
        job = subprocess.Popen([*command, "run.trace_step=2"], env=environment, stdout=file, stderr=file, cwd=tmp_path)
    try:
        assert job.wait(timeout=180) == 0, [log.read_text() for log in (tmp_path / "log").glob("worker_*.log")]
    finally:
        end_job(job)
    (folder,) = (tmp_path / "runs").iterdir()
    plan = plan_from_config(path)[0].plan
    contents = {name: json.loads((folder / name).read_text()) for name in (MEASURED, PREDICTED, BOTH)}
    for name in (MEASURED, PREDICTED):
        names = sorted(e["name"] for e in slices(contents[name], ["F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]))
        assert names == sorted(str(action) for program in plan.programs for action in program)
        ends = {(e["ph"], e["id"]): e["ts"] for e in contents[name]["traceEvents"] if e["ph"] in "sf"}
        assert len(ends) == 2 * len(slices(contents[name], ["SEND_F", "SEND_B"])) > 0
        assert all(ends["s", number] <= ts for (_, number), ts in ends.items())
    for rank, program in enumerate(plan.compute):  # in the order of the plan, on a clock that starts at 0
        track = sorted((e for e in slices(contents[MEASURED], "FB") if e["pid"] == rank + 1), key=lambda e: e["ts"])
        assert [e["name"] for e in track] == list(map(str, program))
        assert 0 <= track[0]["ts"] < track[-1]["ts"] < 60e6
    assert all(e["args"]["bytes"] > 0 for e in slices(contents[MEASURED], ["SEND_F", "SEND_B"]))
    about = loading(contents[MEASURED])
    assert [rank for rank, name, _, _ in about if name == "wait for data"] == [0, 1]
    # It is the last step of three: the thread is through with it, and has nothing more to do.
    assert {name for _, name, _, _ in about} <= {"wait for data", "load step 2"}
    groups = [e["args"]["name"] for e in contents[BOTH]["traceEvents"] if e["name"] == "process_name"]
    assert groups == ["predicted rank 0", "predicted rank 1", "measured rank 0", "measured rank 1"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
