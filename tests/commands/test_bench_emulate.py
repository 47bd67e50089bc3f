"""The command `bench --emulate`: what it refuses before any process starts, and how it lays its result out."""

import json
from pathlib import Path

import pytest

from hyperparallel.cli import main
from hyperparallel.commands.emulate import report, summarise
from hyperparallel.cost import PartCost
from hyperparallel.training.emulated_lines import Setting, plan_for

CONFIG = str(Path(__file__).parents[2] / "yaml" / "digits.yaml")
SMALL = ["--ranks", "2", "--micro-batches", "2", "--cost", "vision=4/0,llm=20/40"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([CONFIG, "--emulate"], "bench takes a CONFIG.yaml or --emulate, but got"),
        ([CONFIG, "--ranks", "2", "--json"], "--ranks, --json of bench needs --emulate; for example"),
        (["--emulate"], "bench --emulate needs --ranks, --micro-batches and --cost; for example"),
        (["--emulate", *SMALL, "--unit-ms", "0"], "expected milliseconds above 0 such as 20, got '0'"),
        (["--emulate", *SMALL, "--unit-ms", "1e6"], "only more than 0 and at most 600 s are emulated"),
        (["--emulate", *SMALL[:4], "--cost", "llm=0/0"], "would take 0 s"),
        (["--emulate", *SMALL, "--ranks", "65"], "every rank is a process of this machine; at most 64"),
        (["--emulate", *SMALL, "--schedule", "1f1b(vison+llm)"], "did you mean 'vision'?"),
        (["--emulate", *SMALL, "--compare", "zb(vision+llm)"], "splits backwards in I and W"),
        (["--emulate", *SMALL, "--cost", "llm"], "'llm' is not a cost"),
        ([], "bench needs a CONFIG.yaml"),
    ],
)
def test_mistakes_are_found_before_a_job_starts(options, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *options]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_there_is_no_command_emulate(capsys):
    assert main(["emulate"]) == 2
    assert "unknown command 'emulate'" in capsys.readouterr().err


def test_started_by_hand_under_msrun(monkeypatch, capsys):
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    assert main(["bench", "--emulate"]) == 2
    assert "starts its ranks itself" in capsys.readouterr().err


@pytest.fixture
def result():
    setting = Setting({"llm": PartCost(20, 40)}, 2, 4, 1e-3, 4096)
    lines = [plan_for(text, setting) for text in ("1f1b(llm)", "gpipe(llm)")]
    rows = [
        {"measured": [0.310, 0.300, 0.400], "walk": [0.3, 0.3, 0.4], "in_order": True},
        {"measured": [0.620, 0.600], "walk": [0.6, 0.6], "in_order": False},
    ]
    return summarise(lines, {"machine": "a machine", "alpha": 0.0, "beta": 0.0, "rows": rows})


def test_the_prediction_stands_beside_the_median(result):
    first, second = result["rows"]
    assert first["predicted"] == pytest.approx(300) and first["measured"] == pytest.approx(310)
    assert (first["fastest"], first["slowest"]) == pytest.approx((300, 400))
    assert first["walk"] == pytest.approx(300)
    assert first["measured_over_predicted"] == pytest.approx(310 / 300)
    assert second["over_first"] == pytest.approx(610 / 310)
    assert json.loads(json.dumps(result)) == result


def test_the_table(result):
    head, sizes, _, _, first, second, *_ = report(result).splitlines()
    assert head == "machine  a machine" and sizes.startswith("P = 2, M = 4; a message takes 0.00 ms")
    assert first.split() == ["300", "310", "(300", "-", "400)", "1.033", "1.000", "1f1b(llm)"]
    assert second.endswith("gpipe(llm)   NOT IN THE ORDER OF THE PLAN")
