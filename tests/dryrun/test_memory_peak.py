"""The memory model against the simulated peak, on a part of the grid of `scripts/measure_memory.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_memory.py"


@pytest.fixture(scope="module")
def script():
    """Import the script."""
    spec = importlib.util.spec_from_file_location("measure_memory", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_prediction_is_within_a_tenth(script, tmp_path):
    cases = [
        script.Case(schedule, 2, 2)
        for schedule in ("gpipe(vision+llm)", "zb(vision+llm)", "transpose(vision) >> 1f1b(llm)")
    ]
    rows = script.compare(cases, tmp_path, jobs=2)
    assert len(rows) == 2 * len(cases)
    for row in rows:
        assert row["predicted"] == pytest.approx(row["simulated"], rel=0.1), script.line_of(row)
    assert script.disagreements(rows) == []


def test_disagreement_is_found(script):
    def row(schedule, simulated, predicted, rank=0):
        return {
            **script.Case(schedule, 2, 2)._asdict(),
            "rank": rank,
            "simulated": simulated,
            "predicted": predicted,
        }

    assert script.disagreements([row("a", 100, 100), row("b", 200, 210)]) == []
    assert script.disagreements([row("a", 1000, 1020), row("b", 1005, 1010)]) == []  # a tie
    assert len(script.disagreements([row("a", 100, 220), row("b", 200, 210)])) == 1
    # The fullest rank decides.
    assert len(script.disagreements([row("a", 100, 100), row("a", 300, 90, 1), row("b", 200, 210)])) == 1
