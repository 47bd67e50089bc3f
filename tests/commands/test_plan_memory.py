"""`hyperparallel plan CONFIG.yaml --memory`: the table, the JSON and the figure, and a sentence for every mistake."""

import json
from pathlib import Path

import pytest

from hyperparallel.cli import main
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.training import live_memory
from hyperparallel.training.memory_profile import probes

DIGITS = str(Path(__file__).parents[2] / "yaml" / "digits.yaml")
FILL = 'schedule="transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"'
BYTES = LayerBytes(weights=4000, trained=4000, largest=2000, constants=0, saved=10**6, forward=0, backward=500)
LINE = ["plan", "--schedule", "1f1b(llm)", "--ranks", "2", "--micro-batches", "2", "--cost", "llm=4/8"]


@pytest.fixture(autouse=True)
def known(monkeypatch, tmp_path_factory):
    """Let every layer be known, so that nothing is measured."""

    def profile_of(path, overrides, layers, columns, file, *, dtype, shards):
        return {probe.kind: BYTES for probe in probes(layers, columns, dtype)}

    missing = tmp_path_factory.mktemp("profile") / "memory.json"
    monkeypatch.setattr(live_memory, "default_file", lambda: missing)
    monkeypatch.setattr(live_memory, "profile_of", profile_of)


@pytest.mark.parametrize("overrides", [[], [FILL, "planner.engine=list"]])
def test_the_table_says_what_json_says(capsys, overrides):
    argv = ["plan", DIGITS, *overrides, "--memory"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "measuring the memory of" in err
    head, *rows = out.split("peak memory of the graph runner, MB, and what it is for\n")[1].splitlines()
    assert main([*argv, "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert len(rows) == len(memory) == 2
    for rank, (row, data) in enumerate(zip(rows, memory, strict=True)):
        cells = dict(zip(head.split(), row.split(), strict=True))
        kinds = head.split()[3:]
        assert (cells["rank"], cells["at"]) == (str(rank), data["at"])
        assert float(cells["peak"]) == pytest.approx(data["peak"] / 1e6, abs=0.005)
        assert [float(cells[kind]) for kind in kinds] == pytest.approx(
            [data["live"][kind] / 1e6 for kind in kinds], abs=0.005
        )
        assert data["peak"] == sum(data["live"][kind] for kind in kinds)


def test_the_figure_alone_and_with_others(capsys, tmp_path):
    files = [tmp_path / "memory.png", tmp_path / "time.svg"]
    assert main(["plan", DIGITS, "--memory-figure", str(files[0]), "--figure", str(files[1])]) == 0
    assert "peak memory" not in capsys.readouterr().out
    assert files[0].read_bytes().startswith(b"\x89PNG") and files[1].read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*LINE, "--memory"], "which only a CONFIG.yaml gives"),
        ([*LINE, "--memory-figure", "{}/x.svg"], "which only a CONFIG.yaml gives"),
        (["plan", DIGITS, "--memory-figure", "{}/x.pdf"], "a figure ends in .svg or .png"),
        (["plan", DIGITS, "--memory-figure", "{}/x.svg", "--figure", "{}/x.svg"], "name the same file"),
        (["plan", DIGITS, "--memory-figure", "{}/no/x.svg", "--figure", "{}/y.svg"], "cannot be written"),
    ],
)
def test_mistakes_leave_no_file(capsys, tmp_path, argv, said):
    assert main([word.format(tmp_path) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err
    assert list(tmp_path.iterdir()) == []
