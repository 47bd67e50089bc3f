"""Run all cases in few jobs, once for all tests of this folder."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cells_case import CASES, kind_of, reference  # noqa: E402
from cells_jobs import run_ranks  # noqa: E402

_OVER_FILES = {"jobs", "results", "probes", "graph_jobs"}
"""Fixtures here that several files share: starting their jobs twice would cost minutes."""


@pytest.hookimpl(tryfirst=True)  # before the plugin reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share all tests of the project out over the processes such that what several prepare together is prepared once.

    Here, as doctests allow one file of this name only. Tests that prepare nothing together go wherever there is room.
    """
    for item in items:
        if _OVER_FILES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("cells"))
        elif _prepares(item):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def _prepares(item: pytest.Item) -> bool:
    """Tell whether a test uses a fixture of ours that serves more than one test."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = [one for group in info.name2fixturedefs.values() for one in group] if info else []
    return any(one.scope in ("module", "session") and one.baseid for one in definitions)


class Seen(NamedTuple):
    """What one rank of a case wrote."""

    facts: dict
    initial: dict[str, np.ndarray]
    final: dict[str, np.ndarray]


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> Path:
    """Run the cases, those with equal numbers of workers in one job; return the folder of results."""
    out = tmp_path_factory.mktemp("cases")
    with ThreadPoolExecutor() as background:
        alone = background.submit(_run, 1, out)
        pair = background.submit(_run, 2, out)
        # Meanwhile, in this process, what the cases are compared with.
        for kind in sorted({kind_of(case) for case in CASES}):
            reference(*kind)
        pair.result()
        _run(4, out)
        alone.result()
    return out


@pytest.fixture(scope="session")
def graph_jobs(tmp_path_factory) -> Path:
    """Run all cases of the graph runner, those of equal size in one job; return the folder of what they wrote."""
    out = tmp_path_factory.mktemp("graph")
    for workers in (1, 2, 4):
        _launch([str(HERE / "graph_worker.py"), str(out)], workers, out / f"job{workers}")
    return out


@pytest.fixture(scope="session")
def results(jobs) -> dict[str, list[Seen]]:
    """Case name -> what each rank saw."""
    return {case.name: [_load(jobs / f"{case.name}.{rank}") for rank in range(case.workers)] for case in CASES}


@pytest.fixture(scope="session")
def probes(jobs) -> list[dict]:
    """What each of two ranks answered to `cells_probe`."""
    return [json.loads((jobs / f"probe.{rank}.json").read_text()) for rank in range(2)]


def _run(workers: int, out: Path) -> None:
    """Run the cases of one number of workers."""
    cases = [asdict(case) for case in CASES if case.workers == workers]
    (out / f"{workers}.json").write_text(json.dumps(cases))
    _launch([str(HERE / "cells_worker.py"), str(out / f"{workers}.json"), str(out)], workers, out / f"job{workers}")


def _launch(command: list[str], workers: int, folder: Path) -> None:
    if workers > 1:
        run_ranks(command, workers, folder)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, errors="replace", timeout=900
    )
    if done.returncode != 0:
        pytest.fail((done.stdout + done.stderr)[-4000:])


def _load(path: Path) -> Seen:
    arrays = dict(np.load(f"{path}.npz"))
    initial = {name.removeprefix("initial:"): value for name, value in arrays.items() if name.startswith("initial:")}
    final = {name: value for name, value in arrays.items() if not name.startswith("initial:")}
    return Seen(json.loads(Path(f"{path}.json").read_text()), initial, final)
