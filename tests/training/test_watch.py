"""The starter's view of a job: which process is which rank, and who ended first and how."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hyperparallel.training.launch import end_job
from hyperparallel.training.watch import SCHEDULER, Watch

# Starts a scheduler, two ranks in sessions of their own, and what follows their logs, as msrun does; asks nobody.
MSRUN = """\
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
scheduler = sleep if len(sys.argv) == 1 else [sys.executable, "-c", sys.argv[1]]
subprocess.Popen(scheduler, env={**os.environ, "MS_ROLE": "MS_SCHED", "RANK_ID": "0"})
for rank in "10":
    environment = {**os.environ, "MS_ROLE": "MS_WORKER", "RANK_ID": rank}
    subprocess.Popen(sleep, env=environment, start_new_session=True)
    subprocess.Popen(sleep, env=environment)
time.sleep(60)
"""


@pytest.fixture
def job():
    process = subprocess.Popen([sys.executable, "-c", MSRUN], env={**os.environ, "PATH": os.environ["PATH"]})
    yield process
    end_job(process)


@pytest.fixture
def watch(job, tmp_path):
    (tmp_path / "msrun.log").write_text("")
    watch = Watch(job, 2, tmp_path)
    wait(watch, lambda: watch.complete)
    return watch


def wait(watch, condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
        watch.look()


def test_the_first_to_end_and_how(watch):
    assert watch.first == watch.ended == {} and not watch.ranks_ended
    processes = watch._members
    assert sorted(processes, key=str) == [0, 1, SCHEDULER]
    assert processes[0].environ()["RANK_ID"] == "0" and processes[0].pid > processes[1].pid
    processes[0].suspend()
    wait(watch, lambda: processes[0].status() == psutil.STATUS_STOPPED)
    processes[1].kill()
    wait(watch, lambda: watch.first)
    assert watch.first == {1: -signal.SIGKILL} and watch.still == [0]
    processes[0].kill()
    processes[SCHEDULER].terminate()
    wait(watch, lambda: watch.ranks_ended and SCHEDULER in watch.ended)
    assert watch.first == {1: -9} and watch.ended == {1: -9, 0: -9, SCHEDULER: -15}


def test_a_scheduler_that_ends_before_anyone_looks(tmp_path):
    (tmp_path / "msrun.log").write_text("")
    job = subprocess.Popen([sys.executable, "-c", MSRUN, "raise SystemExit(3)"])
    try:
        watch, process = Watch(job, 2, tmp_path), psutil.Process(job.pid)
        wait(watch, lambda: len(process.children()) == 5 and process.children()[0].status() == psutil.STATUS_ZOMBIE)
        late = Watch(job, 2, tmp_path)
        wait(late, lambda: late.complete)
        assert late.first == late.ended == {SCHEDULER: 3} and not late.ended_well
    finally:
        end_job(job)


def test_a_signal_goes_to_the_ranks_only(watch):
    watch.signal_ranks(signal.SIGTERM)
    wait(watch, lambda: watch.ranks_ended)
    assert watch.first and watch.ended == {0: -15, 1: -15}


def test_what_msrun_saw_counts_if_it_was_faster(watch, tmp_path):
    says = "[ERROR] ME(1): Worker process {} exit with exception. Error code: {}.\n"
    pid = watch._members[1].pid
    assert watch.missed() == {}
    (tmp_path / "msrun.log").write_text(says.format(pid, -9) + says.format(watch._members[0].pid, 1))
    assert watch.missed() == {1: -9}  # nothing was seen here
    watch.first = {0: -9, 1: None}
    assert watch.missed() == {1: -9}
    watch.first = {0: -9}
    assert watch.missed() == {}  # it looked later than this watch
    watch.first = {1: -9}
    assert watch.missed() == {}
    del watch._members[1]  # it ended before it was found
    watch.first = {0: -9}
    assert watch.missed() == {1: -9}
    watch._members.clear()
    assert watch.missed() == {}  # it could be either


@pytest.mark.parametrize(
    ("ended", "log", "well"),
    [
        ({0: 0, 1: 0}, "", True),
        ({0: 0, 1: None}, "", True),
        ({0: 0, 1: 0, SCHEDULER: 1}, "", True),
        ({0: 0}, "", False),
        ({0: 0, 1: -11}, "", False),
        ({0: 0, 1: None}, "[ERROR] Worker process 17 exit with exception. Error code: -11.", False),
    ],
)
def test_ranks_have_ended_well_if_nobody_says_otherwise(watch, tmp_path, ended, log, well):
    watch.ended = ended
    (tmp_path / "msrun.log").write_text(log)
    assert watch.ended_well is well
