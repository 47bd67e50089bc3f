"""The first cause: who failed by itself is named, not who was ended for it or waited for it."""

import signal
from types import SimpleNamespace

import pytest

from hyperparallel.training.cause import explain_failure, read_words
from hyperparallel.training.watch import SCHEDULER

TRACEBACK = "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\n    g()\nKeyError: 'x'\n"
PLACED = f"{TRACEBACK}rank 0 was in 1F0 of step 3\n"
GONE = (
    "hyperparallel: rank {0} waits for 1SEND_F3 of step 7 from rank {1}, which has gone; rank {0} was in 0F1 of "
    "step 7\n"
)
SILENT = (
    "hyperparallel: rank {} has waited 5 s for the sum of x over ranks 0, 1, 2 from rank {}, which does not answer\n"
)
KILLED, NOTHING = -signal.SIGKILL, ""


def explain(tmp_path, logs, first, *, ended=None, still=(), missed=None, msrun=1, last=None):
    for rank, text in enumerate(logs):
        (tmp_path / f"worker_{rank}.log").write_text(text)
    watch = SimpleNamespace(first=first, ended=ended or first, still=still, missed=lambda: missed or {})
    return explain_failure(watch, msrun, tmp_path, last)


@pytest.mark.parametrize(
    ("logs", "first", "words"),
    [
        pytest.param([NOTHING, NOTHING], {1: KILLED}, "rank 1 was killed by signal 9 (SIGKILL) before", id="killed"),
        pytest.param([NOTHING, NOTHING], {1: -11}, "rank 1 was killed by signal 11 (SIGSEGV)", id="crashed"),
        pytest.param([NOTHING, NOTHING], {0: 0, 1: -40}, "rank 1 was killed by signal 40 ", id="nameless"),
        pytest.param([NOTHING, NOTHING], {1: 3}, "rank 1 ended with exit code 3 without a word", id="exit"),
        pytest.param(
            [NOTHING, "fine\n" + TRACEBACK], {1: 1}, "rank 1 failed: KeyError: 'x' (the whole", id="traceback"
        ),
        pytest.param([PLACED, NOTHING], {0: 1}, "rank 0 failed in 1F0 of step 3: KeyError: 'x'", id="in an action"),
        pytest.param([NOTHING, "hyperparallel: a mistake\n"], {1: 2}, "rank 1 says: a mistake (logs:", id="sentence"),
        pytest.param([TRACEBACK, NOTHING], {0: 1, 1: KILLED}, "rank 0 failed: KeyError", id="msrun ended the other"),
        pytest.param([GONE.format(0, 1), NOTHING], {0: 2, 1: KILLED}, "rank 1 was killed by signal 9", id="both seen"),
        pytest.param([GONE.format(0, 1), TRACEBACK], {0: 2}, "rank 1 failed: KeyError", id="the other is slow to end"),
        pytest.param([GONE.format(0, 1), NOTHING], {0: 2, 1: 0}, "rank 1 ended with exit code 0 without", id="left"),
        pytest.param(
            [GONE.format(0, 1), GONE.format(1, 2), NOTHING], {0: 2, 1: 2}, "rank 2 has gone before", id="a chain"
        ),
        pytest.param(
            [NOTHING, SILENT.format(1, 2), NOTHING],
            {1: 2},
            "rank 2 does not answer: rank 1 has waited 5 s",
            id="silent",
        ),
        pytest.param(
            [GONE.format(0, 1), SILENT.format(1, 2), NOTHING], {0: 2}, "rank 2 does not answer: rank 1", id="both"
        ),
        pytest.param(
            [SILENT.format(0, 1), SILENT.format(1, 0)], {0: 2, 1: 2}, "rank 0 says: rank 0 has waited", id="a circle"
        ),
        pytest.param([NOTHING], {SCHEDULER: KILLED}, "the scheduler of the job was killed by signal 9", id="scheduler"),
        pytest.param(
            [NOTHING], {SCHEDULER: 1}, "the scheduler of the job ended with exit code 1", id="scheduler failed"
        ),
        pytest.param([TRACEBACK], {}, "rank 0 failed: KeyError", id="nothing was seen"),
        pytest.param([NOTHING], {}, "the job failed before the first step and no rank says why", id="nothing at all"),
    ],
)
def test_the_first_cause_is_named(tmp_path, logs, first, words):
    said = explain(tmp_path, logs, first)
    assert said.startswith(words) and str(tmp_path) in said


def test_when_and_what_to_look_at(tmp_path):
    said = explain(tmp_path, [NOTHING, NOTHING], {1: KILLED}, last=4)
    log = tmp_path / "worker_1.log"
    assert said == (
        f"rank 1 was killed by signal 9 (SIGKILL) after step 4; its log is {log}; if nobody killed it, the machine had "
        "no memory left (dmesg says so)"
    )


def test_a_rank_that_is_held_still(tmp_path):
    said = explain(tmp_path, [SILENT.format(0, 1), NOTHING], {0: 2}, still=[1])
    assert said.startswith("rank 1 does not answer and is held still (SIGSTOP, or a debugger): rank 0 has waited 5 s")
    assert said.endswith(f"(log: {tmp_path / 'worker_1.log'})")


def test_msrun_killed(tmp_path):
    said = explain(tmp_path, [NOTHING], {}, msrun=KILLED, last=0)
    assert said == f"msrun was killed by signal 9 (SIGKILL) after step 0; its log is {tmp_path / 'msrun.log'}"


def test_msrun_was_faster_to_look(tmp_path):
    said = explain(tmp_path, [NOTHING, NOTHING], {0: KILLED, 1: None}, missed={1: KILLED})
    assert said.startswith("rank 1 was killed by signal 9")


def test_the_last_of_several_tracebacks_and_places(tmp_path):
    path = tmp_path / "worker_0.log"
    path.write_text(f"{PLACED}{TRACEBACK.replace('KeyError', 'ms.Error')}rank 0 was in 0B1 of step 9\n----\n- C++\n")
    words = read_words(path)
    assert (words.text, words.place, words.awaited) == ("ms.Error: 'x'", "0B1 of step 9", None)
    path.write_text("nothing went wrong\n")
    assert read_words(path) is None
