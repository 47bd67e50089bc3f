"""Following a metrics file while it is written."""

import pytest

from hyperparallel.training import progress
from hyperparallel.training.progress import Progress, follow

LINE = {"step": 0, "loss": 2.5, "tokens_per_s": 100.0, "step_time": 0.25}


class Writer:
    """Play a job: before each look at the file, write the next piece; it ends with the last piece."""

    def __init__(self, path, pieces):
        self.path, self.pieces = path, list(pieces)

    def running(self):
        piece = self.pieces.pop(0)
        if piece is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(piece)
        return bool(self.pieces)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(['{"n": 0}\n{"n": 1}\n{"n": 2}\n'], id="all at once, by a job that has ended"),
        pytest.param([None, None, '{"n": 0}\n', '{"n": 1}\n{"n": 2}\n'], id="no file yet"),
        pytest.param(['{"n": 0}\n{"n"', None, ": 1", "}", "\n", '{"n": 2}\n'], id="half-written lines"),
        pytest.param(['{"n": 0}\n', '{"n": 1}\n{"n": 2}\n{"n": 3'], id="a last line that is never finished"),
        pytest.param(["", '{"n": 0}\n', "", '{"n": 1}\n{"n": 2}\n', None, None], id="nothing new"),
        pytest.param(['{"n": 0, "é": "ü€', '"}\n{"n": 1}\n', '{"n": 2}\n'], id="letters of several bytes"),
    ],
)
def test_every_whole_line_is_reported_once_and_in_order(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(progress.time, "sleep", lambda _: None)
    path, seen = tmp_path / "metrics.jsonl", []
    follow(path, Writer(path, pieces).running, seen.append)
    assert [line["n"] for line in seen] == [0, 1, 2]


def test_a_job_that_never_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(progress.time, "sleep", lambda _: None)
    follow(tmp_path / "metrics.jsonl", Writer(None, [None, None]).running, pytest.fail)


def test_the_bar_shows_loss_speed_and_step_time(capsys):
    bar = Progress(4)
    for step in range(3):
        bar.report({**LINE, "step": step, "loss": 2.5 - step})
    bar.close()
    shown = capsys.readouterr().err
    assert "loss 0.5000, 100 tokens/s, 250 ms" in shown and "3/4" in shown and shown.endswith("\n")
