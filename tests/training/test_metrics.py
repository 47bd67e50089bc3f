"""The files that a run writes: whole lines, whole files, JSON that any reader takes; and the numbers of the summary."""

import json

import numpy as np
import pytest

from hyperparallel.training.metrics import MetricsFile, peak_memory_mb, summarise, write_json


def test_ranks_other_than_0_write_no_metrics(tmp_path):
    with MetricsFile(None) as metrics:
        metrics.write({"step": 0})
    assert list(tmp_path.iterdir()) == []


def test_lines_are_on_disk_as_soon_as_they_are_written(tmp_path):
    with MetricsFile(tmp_path / "m") as metrics:
        for step in range(2):
            metrics.write({"step": step})
            assert [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()][-1] == {"step": step}


def test_a_json_file_is_replaced_as_a_whole(tmp_path):
    for value in (1, 2):
        write_json(tmp_path / "x.json", {"value": value})
    assert json.loads((tmp_path / "x.json").read_text()) == {"value": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_what_is_no_number_is_null(tmp_path):
    values = {"loss": float("nan"), "bubble": [float("inf"), 0.5], "name": "x", "more": {"norm": -float("inf")}}
    expected = {"loss": None, "bubble": [None, 0.5], "name": "x", "more": {"norm": None}}
    with MetricsFile(tmp_path / "m") as metrics:
        metrics.write(values)
    write_json(tmp_path / "x.json", values)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    for name in ("m", "x.json"):
        assert json.loads((tmp_path / name).read_text(), parse_constant=refuse) == expected


def test_the_peak_of_memory_grows_with_what_is_held():
    before = peak_memory_mb()
    held = np.ones(40_000_000)  # 320 MB
    assert peak_memory_mb() >= max(before, held.nbytes / 1e6)


def line(step, **more):
    return {
        "loss": 10.0 - step,
        "step_time": 1.0 + 10 * (step == 0),
        "tokens_per_s": step,
        "images_per_s": 2 * step,
        "data_wait": 0.0,
        "memory_peak_mb": 100 + step,
        "updated": step != 2,
        "skipped": step // 2,
        **more,
    }


@pytest.mark.parametrize("bubbles", [False, True])
def test_the_summary_leaves_out_the_first_quarter_of_the_steps(bubbles):
    lines = [line(step, **({"bubble": [step / 10, 0.5]} if bubbles else {})) for step in range(4)]
    assert summarise(lines) == {
        "steps": 4,
        "first_loss": 10.0,
        "last_loss": 7.0,
        "step_time": 1.0,
        "tokens_per_s": 2,
        "images_per_s": 4,
        "data_wait": 0.0,
        "memory_peak_mb": 103,
        "steps_left_out": 1,
        "skipped": 1,
        **({"bubble": [0.2, 0.5]} if bubbles else {}),
    }
