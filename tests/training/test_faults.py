"""Real jobs that are killed, broken, held still or asked to stop: they end soon, say why, and can go on."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from kill_ranks import Run  # noqa: E402

pytestmark = pytest.mark.slow
# Python runs this at its start: rank 1 fails in an action of step 1.
BROKEN_ACTION = """\
import os
if os.environ.get("MS_ROLE") == "MS_WORKER" and os.environ.get("RANK_ID") == "1":
    from hyperparallel.cells.walk import Walk
    whole = Walk._forward
    def _forward(self, action):
        if self.runner.step_number == 1:
            raise KeyError(f"a bug in {action}")
        whole(self, action)
    Walk._forward = _forward
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start jobs that end with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runs = []

    def start(*words):
        runs.append(Run(tmp_path / str(len(runs)), ["parallel.ranks=2", "training.steps=1000", *words]))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        for process, _ in run.processes():
            process.kill()


def test_ranks_that_are_killed_or_asked_to_stop_go_on_with_the_same_losses():
    command = [sys.executable, str(SCRIPTS / "kill_ranks.py"), "--kills", "3", "--terms", "1", "--steps", "20"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500)
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    killed = [row for row in rows if row[0] == "SIGKILL"]
    assert len(killed) == 3 and len([row for row in rows if row[0] == "SIGTERM"]) == 1
    assert all(float(row[4]) < 60 and row[5] == "2" and int(row[7]) >= 1 and row[8] == "ok" for row in killed)


def test_an_exception_and_a_silence_are_told_with_the_action(start, tmp_path, monkeypatch):
    """Two jobs at the same time, since most of a job's start is waiting."""
    silent = start("run.timeout_s=10")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN_ACTION)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    broken = start()
    assert silent.wait_for(2)
    silent.rank(1).send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    assert broken.wait_for(1) or broken.lines()
    check_broken(broken)
    assert silent.wait(60) == 2 and silent.left == [] and time.monotonic() - begin > 9
    (said,) = silent.messages()
    awaited = r"(\d+SEND_[FB]\d+ of step \d+|the sum of .* over ranks 0, 1)"
    words = f"rank 0 has waited 10 s for {awaited} from rank 1, which does not answer"
    assert re.match(rf"rank 1 does not answer and is held still \(SIGSTOP, or a debugger\): {words}", said), said


def check_broken(run):
    assert run.wait(60) == 2 and run.left == []
    (said,) = run.messages()
    found = re.match(
        r"rank 1 failed in (\d+F\d+) of step 1: KeyError: 'a bug in (.*)' \(the whole traceback is in", said
    )
    assert found and found[1] == found[2], said
    assert said.endswith(f"; step_000001 is whole, go on with resume={run.folder}")
    log = (run.folder / "logs" / "worker_1.log").read_text()
    assert "in _forward\n" in log and f"rank 1 was in {found[1]} of step 1" in log
