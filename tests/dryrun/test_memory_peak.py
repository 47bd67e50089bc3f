"""The memory model against the simulated peak, on a part of the grid of `scripts/measure_memory.py`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.errors import DryRunError
from hyperparallel.training.memory_profile import layer_bytes, probes, read_profile

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_memory.py"


@pytest.fixture(scope="module")
def script():
    """Import the script."""
    spec = importlib.util.spec_from_file_location("measure_memory", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_equal_layers_are_one_kind(script):
    layers, columns, _ = script.model_of(script.Case("gpipe(vision+llm)", 2, 2))
    found = probes(layers, columns)
    names = [layer.name for layer in layers]
    blocks = {found[names.index(f"llm.blocks.{index}")].kind for index in range(script.BLOCKS)}
    assert len(blocks) == 1
    assert len({probe.kind for probe in found}) == len(layers) - script.BLOCKS + 1
    assert found[0].carry == ()
    assert not found[0].sends_gradient


def test_frozen_encoder_is_another_kind(script):
    layers, columns, _ = script.model_of(script.Case("gpipe(vision+llm)", 2, 2))
    frozen, _, _ = script.model_of(script.Case("gpipe(vision+llm)", 2, 2, trained=False))
    pairs = list(zip(probes(layers, columns), probes(frozen, columns), strict=True))
    embed = [layer.name for layer in layers].index("llm.embed")
    # The embedding after it returns no gradient; what comes later is the same.
    assert [one.kind != other.kind for one, other in pairs] == [index <= embed for index in range(len(layers))]
    assert [other.backward for _, other in pairs] == [index >= embed for index in range(len(layers))]


def test_what_is_not_measured_is_refused(script):
    layers, columns, _ = script.model_of(script.Case("gpipe(vision+llm)", 2, 2))
    with pytest.raises(DryRunError, match=r"vision\.patch"):
        layer_bytes(layers, columns, {})


def test_another_file_is_refused(tmp_path):
    assert read_profile(tmp_path / "missing.json") == {}
    right = dict.fromkeys(LayerBytes._fields, 1)
    wrong = [
        {"weights": 1},
        {**right, "saved": -1},
        {**right, "saved": 0.5},
        {**right, "trained": 2},
        {**right, "x": 1},
    ]
    for content in (*({"kind": one} for one in wrong), [], None):
        (tmp_path / "bad.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(DryRunError, match=r"bad\.json is not a memory profile"):
            read_profile(tmp_path / "bad.json")
    (tmp_path / "good.json").write_text(json.dumps({"kind": right}), encoding="utf-8")
    assert read_profile(tmp_path / "good.json") == {"kind": LayerBytes(**right)}


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
