"""A job that fails ends as a whole, soon, and says which process it was; a port that is taken is not a failure."""

import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from training_config import processes_of

from hyperparallel.training import job as jobs
from hyperparallel.training import launch
from hyperparallel.training.job import JobError, run_job

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "training_ranks.py"


@pytest.mark.parametrize(
    ("when", "how", "words"),
    [
        ("together", "raise", "rank 1 failed: KeyError: 'rank 1 broke' (the whole traceback is in "),
        ("together", "sentence", "rank 1 says: the data of rank 1 are wrong (logs: "),
        ("together", "killed", "rank 1 was killed by signal 9 (SIGKILL) before the first step; its log is "),
        ("alone", "killed", "rank 1 was killed by signal 9 (SIGKILL) before the first step; its log is "),
        ("alone", "raises", "rank 1 failed: KeyError: 'before joining'"),
        ("alone", "kills msrun", "msrun was killed by signal 9 (SIGKILL) before the first step; its log is "),
        ("alone", "kills scheduler", "the scheduler of the job was killed by signal 9 (SIGKILL) before the first step"),
    ],
)
def test_a_process_that_fails_ends_the_job_and_is_named(tmp_path, when, how, words):
    start = time.monotonic()
    with pytest.raises(JobError) as error:
        run_job([str(SCRIPT), when, how, str(tmp_path)], 2, tmp_path, "metrics.jsonl", pytest.fail)
    assert str(error.value).startswith(words) and str(tmp_path / "logs") in str(error.value)
    assert processes_of(tmp_path, 1.0) == []
    assert time.monotonic() - start < 60


def test_ranks_that_have_done_everything_have_ended_well(tmp_path):
    """Whatever becomes of MindSpore on the way out; and nobody waits for the scheduler, which would wait for 30 s."""
    start = time.monotonic()
    run_job([str(SCRIPT), "together", "crashes on its way out"], 2, tmp_path, "metrics.jsonl", pytest.fail)
    assert processes_of(tmp_path, 1.0) == [] and time.monotonic() - start < 30
    assert not (tmp_path / "logs" / "worker_0.log").read_text()


def test_a_port_that_is_taken_meanwhile_makes_way_for_another(tmp_path, monkeypatch):
    given = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = launch._free_port

        def choose():
            given.append(free() if given else taken.getsockname()[1])
            return given[-1]

        monkeypatch.setattr(launch, "_free_port", choose)
        run_job([str(SCRIPT), "together", "ends well", str(tmp_path)], 2, tmp_path, "metrics.jsonl", pytest.fail)
    assert len(set(given)) == 2 and processes_of(tmp_path, 1.0) == []


def test_ports_that_are_always_taken_are_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_STARTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(launch, "_free_port", lambda: taken.getsockname()[1])
        with pytest.raises(JobError, match="the port of the scheduler was taken 1 times; see .*scheduler.log"):
            run_job([str(SCRIPT), "together", "ends well", str(tmp_path)], 2, tmp_path, "metrics.jsonl", pytest.fail)
    assert processes_of(tmp_path, 1.0) == []


@pytest.mark.parametrize(
    ("stop_s", "again", "error", "words"),
    [
        (1.0, False, JobError, r"the ranks did not end within 1 s of SIGTERM and were killed \(logs: "),
        (60.0, True, SystemExit, "143"),
        (None, False, SystemExit, "143"),
    ],
)
def test_ranks_that_do_not_stop(tmp_path, stop_s, again, error, words):
    """They sleep with SIGTERM blocked; two that come at once, as `timeout` sends, are one."""
    main = threading.get_ident()

    def ask():
        while not (tmp_path / "logs" / "worker_1.log").exists():
            time.sleep(0.05)
        for pause in [0.1, 0.1, *([1.2] if again else [])]:
            time.sleep(pause)
            signal.pthread_kill(main, signal.SIGTERM)
            if stop_s is None:
                return

    asking = threading.Thread(target=ask)
    asking.start()
    start = time.monotonic()
    with pytest.raises(error, match=words):
        run_job([str(SCRIPT), "alone", "sleeps", str(tmp_path)], 2, tmp_path, "metrics.jsonl", pytest.fail, stop_s)
    asking.join()
    assert processes_of(tmp_path, 1.0) == [] and time.monotonic() - start < 30
