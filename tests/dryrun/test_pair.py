"""Networks of two ranks, compiled and run by MindSpore's Ascend front and back end."""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from hyperparallel.dryrun import (
    check_execution,
    check_ranks,
    comm_only,
    compute_only,
    final_ir,
    gist,
    must_precede,
    read_execution,
    read_order,
    run_ranks,
    unforced,
)

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).parent / "dryrun_networks.py")
NAMES = ["good", "both_send", "swapped_tags", "untied"]


class Compiled(NamedTuple):
    """What one process per rank left: the events of both ranks by network, and the last network's error."""

    events: dict
    runs: list
    cwd: Path


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """All networks in one process per rank; the last one does not compile."""
    folder, cwd = tmp_path_factory.mktemp("graphs"), tmp_path_factory.mktemp("cwd")
    command = [sys.executable, SCRIPT, "compile", *NAMES, "broken"]
    runs = run_ranks(command, 2, save_graphs=folder, cwd=cwd, timeout=120)
    files = [sorted((folder / f"rank_{rank}").glob("*_validate_*.ir"), key=lambda f: f.stem[-4:]) for rank in (0, 1)]
    assert [len(of_rank) for of_rank in files] == [len(NAMES)] * 2, runs[0].output + runs[1].output
    assert final_ir(folder / "rank_0") == files[0][-1]
    return Compiled({name: [read_order(of_rank[i]) for of_rank in files] for i, name in enumerate(NAMES)}, runs, cwd)


@pytest.fixture
def compiled(job):
    """Name of a network -> the events of both ranks."""
    return job.events


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The folders of both ranks after a run at level 1, and what they printed."""
    folder = tmp_path_factory.mktemp("level1")
    runs = run_ranks([sys.executable, SCRIPT, "run", "good"], 2, level=1, save_graphs=folder, cwd=folder, timeout=120)
    assert [run.passed for run in runs] == [True, True], runs[0].output + runs[1].output
    return [folder / "rank_0", folder / "rank_1"], [run.output for run in runs]


def test_messages_are_read_in_order(compiled):
    read = [[(event.op, event.tag, event.peer, event.shape) for event in comm_only(rank)] for rank in compiled["good"]]
    assert read == [
        [("Send", 0, 1, (4, 8)), ("Receive", 1, 1, (4, 8))],
        [("Receive", 0, 0, (4, 8)), ("Send", 1, 0, (4, 8))],
    ]


def test_good_pair_agrees(compiled):
    assert check_ranks(compiled["good"]) == []
    assert [unforced(rank) for rank in compiled["good"]] == [[], []]


def test_gates_survive_and_precede_their_compute(compiled):
    events = compiled["good"][0]
    actions = {e.op: [m.action for m in must_precede(events, e) if m.action] for e in compute_only(events)}
    assert actions == {"MatMul": ["0F0"], "BiasAdd": ["0F0"], "ReLU": ["0F0", "0B0"]}


def test_both_sending_first_deadlock(compiled):
    problems = check_ranks(compiled["both_send"])
    assert len(problems) == 2
    assert all("is stuck at communication 0 of 2" in problem for problem in problems)


def test_swapped_tags_are_reported(compiled):
    problems = check_ranks(compiled["swapped_tags"])
    assert [problem.split(":")[0] for problem in problems] == ["tags differ", "tags differ"]


def test_untied_collectives_are_unforced(compiled):
    ((first, then),) = unforced(compiled["untied"][0])
    assert (first.op, then.op) == ("AllReduce", "AllReduce")


def test_compile_error_is_cut_to_the_point(job):
    assert [(run.rank, run.passed, run.returncode) for run in job.runs] == [(0, False, 1), (1, False, 1)]
    message, place = gist(job.runs[1].output).splitlines()
    assert message.startswith("ValueError: ")
    assert "dryrun_networks.py" in place
    assert place.endswith("return x + token")


def test_nothing_is_left_in_the_working_folder(job):
    assert list(job.cwd.iterdir()) == []


def test_streams_reach_their_end(executed):
    folders, _ = executed
    assert check_execution(folders) == []


def test_kernels_are_read(executed):
    kernels = read_execution(executed[0][0])
    comm = [(kernel.op, kernel.peer, kernel.ranks, kernel.shape) for kernel in kernels if kernel.group]
    assert comm == [("Send", 1, (0, 1), "(4, 8)Float32"), ("Receive", 1, (0, 1), "(4, 8)Float32")]
    streams = {kernel.stream for kernel in kernels if kernel.group}
    assert streams.isdisjoint(kernel.stream for kernel in kernels if kernel.op == "MatMul")


def test_simulated_peak_is_printed(executed):
    peaks = [int(text.rsplit("peak ", 1)[1].split()[0]) for text in executed[1]]
    weights = 4 * (8 * 8 + 8)
    assert all(weights < peak < 1e6 for peak in peaks)


def test_timeout_ends_the_process_and_what_it_started(tmp_path):
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    start = time.monotonic()
    (run,) = run_ranks([sys.executable, "-c", child], 2, [0], timeout=1.0, cwd=tmp_path)
    assert (run.returncode, run.passed) == (None, False)
    assert time.monotonic() - start < 30
    state = subprocess.run(["ps", "-o", "stat=", "-p", run.output.strip()], capture_output=True, text=True).stdout
    assert state.strip() in ("", "Z")
