"""`hyperparallel plan --scenario`: it says that it is a scenario, and both outputs agree."""

import json

from hyperparallel.cli import main
from hyperparallel.cost.device import find_yaml
from hyperparallel.planner.scenario import EVEN


def small(tmp_path):
    text = find_yaml("paper_8", "scenarios", "scenario").read_text()
    path = tmp_path / "small.yaml"
    path.write_text(text.replace("ranks: [4, 8]", "ranks: [8]").replace("[8, 16, 32]", "[8]"))
    return str(path)


def test_report_and_json_agree(tmp_path, capsys):
    path = small(tmp_path)
    assert main(["plan", "--scenario", path]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("scenario, not a reproduction: arXiv 2607.03229")
    assert main(["plan", "--scenario", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ratios"][EVEN] == 1.0
    for line, ratio in data["ratios"].items():
        assert f"{ratio:.2f}x   {line}\n" in printed
    for one in data["ranges"]:
        even = "-" if one["even"] is None else f"{100 * one['even']:.1f} %"
        assert f"{even:>11}   " in printed
    assert sum(one["even"] is not None for one in data["ranges"]) == 2
    assert "over inline even: under 2 of the 4" in printed


def test_mistakes(tmp_path, capsys):
    assert main(["plan", "--scenario", "paper_9"]) == 2
    assert "did you mean 'paper_8'" in capsys.readouterr().err
    assert main(["plan", "--scenario", "paper_8", "--schedule", "1f1b"]) == 2
    assert "--scenario FILE says all itself" in capsys.readouterr().err
