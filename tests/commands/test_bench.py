"""The command `bench`: what it refuses, and how it lays its result out."""

from pathlib import Path

import pytest

from hyperparallel.cli import main
from hyperparallel.commands.bench import report_bench

CONFIG = Path(__file__).parents[2] / "yaml" / "digits.yaml"
RESULT = {
    "machine": "a machine",
    "ranks": 2,
    "micro_batches": 4,
    "images": [[1, 0], [2, 3]],
    "alpha": 0.004,
    "beta": 1e-9,
    "rows": [
        {
            "label": "inline, even",
            "schedule": "1f1b(vision+llm)",
            "slabs": [5, 3],
            "measured": [1.2, 1.4],
            "spread": [[1.1, 1.5], [1.3, 1.7]],
            "predicted": [1.0, 1.5],
            "ratio": 1.3,
            "ratio_spread": [1.2, 1.4],
            "predicted_ratio": 1.3,
        }
    ],
}


def test_the_table_has_means_spreads_and_quotients():
    lines = report_bench(RESULT).splitlines()
    assert lines[1] == "P = 2, M = 4; images per micro-batch, by batch: 1 0; 2 3"
    row = next(line for line in lines if line.startswith("inline, even"))
    assert "1300 (1200 - 1600)" in row
    assert "1250   +4.0%" in row
    assert "1.300 (1.200 - 1.400)" in row
    assert lines[-1] == "inline, even       1f1b(vision+llm), layers per stage [5, 3]"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("parallel.data_parallel=2", "set parallel.data_parallel to 1"),
        ("parallel.tensor_parallel=2", "set parallel.tensor_parallel to 1"),
        ("training.batch_size=3", "each needs at least one sample; raise batch_size to 4"),
        ("schedule=1f1b(vison+llm)", "did you mean 'vision'?"),
    ],
)
def test_mistakes_are_found_before_a_job_starts(override, words, capsys, tmp_path):
    assert main(["bench", str(CONFIG), override, f"run.out={tmp_path / 'out'}"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
