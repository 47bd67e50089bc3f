"""`hyperparallel plot`: where the figure goes, what is said, and a sentence for every mistake."""

import builtins
import json

import pytest

from hyperparallel.cli import main


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs/2026-01-31"
    folder.mkdir(parents=True)
    lines = [{"step": step, "loss": 2.0 / (1 + step), "step_time": 0.25} for step in range(8)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_figure_is_put_beside_the_metrics(run, capsys):
    assert main(["plot", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out == f"wrote {run}/metrics.png: 8 steps, loss 2.0000 -> 0.2500, median step 250 ms\n" and err == ""
    assert (run / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "metrics.png"]


def test_another_place_and_a_run_that_goes_on(run, capsys, tmp_path):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "loss"')
    for words in (["--out", str(tmp_path / "a.svg"), str(run)], [str(run), "--out", str(tmp_path / "b.svg")]):
        assert main(["plot", *words]) == 0
    out, err = capsys.readouterr()
    assert "8 steps" in out and err.count("metrics.jsonl, line 9 is only half written and left out\n") == 2
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert not (run / "metrics.png").exists()


def test_mistakes_are_answered_with_a_sentence(run, capsys, tmp_path):
    def said(*words):
        assert main(["plot", *map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("hyperparallel: ") and "Traceback" not in err
        return err

    assert "plot needs the folder of a run; for example\n  hyperparallel plot runs/" in said()
    assert "gone is not a folder; give the run folder that hyperparallel train printed" in said(tmp_path / "gone")
    assert "metrics.jsonl is not a folder" in said(run / "metrics.jsonl")
    assert f"has no metrics.jsonl; did you mean {run}?" in said(tmp_path / "runs")
    assert "has no metrics.jsonl; give the run folder" in said(tmp_path)
    assert "'x.pdf' ends in '.pdf'; a figure ends in .svg or .png" in said(run, "--out", "x.pdf")
    assert "cannot be written" in said(run, "--out", tmp_path / "no/such/x.png")
    assert "is one word too many" in said(run, run)
    assert "unknown option --ot; did you mean '--out'?" in said(run, "--ot", "x")
    (run / "metrics.jsonl").write_text("")
    assert "has no step yet; wait for the first" in said(run)


def test_missing_matplotlib_is_named_with_its_extra(run, capsys, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["plot", str(run)]) == 2
    assert "a figure needs matplotlib; pip install 'hyperparallel[figure]'" in capsys.readouterr().err
    assert [path.name for path in run.iterdir()] == ["metrics.jsonl"]
