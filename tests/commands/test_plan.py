"""`hyperparallel plan`: values of the design's table, the JSON interface, and a sentence for every mistake."""

import json
import sys
import types
from pathlib import Path

import pytest

from hyperparallel import derive, parse
from hyperparallel.algebra import from_text
from hyperparallel.cells.layer import build_layer
from hyperparallel.cli import main
from hyperparallel.cost import costs_from_parts, model_from_costs, parse_part_costs
from hyperparallel.planner import Planned
from hyperparallel.training.build import build_layers
from hyperparallel.training.config import load_config
from hyperparallel.training.planning import build_plan

DIGITS = Path(__file__).parents[2] / "yaml" / "digits.yaml"
INLINE, TRANSPOSED, TEXT = "1f1b(vision+llm)", "transpose(vision) >> 1f1b(llm)", "1f1b(llm)"
FROZEN, TRAINED = "vision=12/0,llm=4/8", "vision=12/24,llm=4/8"
KEYS = [
    "schedule",
    "ranks",
    "micro_batches",
    "step_time",
    "lower_bound",
    "bubble",
    "peak_live",
    "owner",
    "programs",
    "certificate",
]


def words(schedule=TRANSPOSED, ranks=4, micro_batches=4, cost=FROZEN, *more):
    given = {"schedule": schedule, "ranks": ranks, "micro-batches": micro_batches, "cost": cost}
    return ["plan", *(text for name, value in given.items() for text in (f"--{name}", str(value))), *more]


def as_json(capsys, *args):
    assert main(words(*args, "--json")) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize(
    ("micro_batches", "cost", "text", "inline", "transposed"),
    [(4, FROZEN, 84, 108, 96), (8, FROZEN, 132, 204, 156), (8, TRAINED, 132, 384, 204)],
)
def test_step_times_of_the_design(capsys, micro_batches, cost, text, inline, transposed):
    for schedule, expected in ((TEXT, text), (INLINE, inline), (TRANSPOSED, transposed)):
        plan = as_json(capsys, schedule, 4, micro_batches, cost)
        assert plan["step_time"] == expected
        assert plan["lower_bound"] <= expected


def test_json_keys_and_values(capsys):
    plan = as_json(capsys, "<transpose, 1f1b>", 4, 4, FROZEN)
    assert list(plan) == KEYS
    assert plan["schedule"] == TRANSPOSED
    assert (plan["ranks"], plan["micro_batches"], plan["lower_bound"]) == (4, 4, 96)
    assert plan["bubble"] == [36] * 4
    assert plan["peak_live"] == [4, 3, 2, 1]
    assert plan["owner"] == [0, 1, 2, 3]
    assert plan["programs"][3][:4] == ["3F3", "3SEND_F3", "7RECV_F0", "7F0"]


def test_json_of_a_schedule_without_owners(capsys):
    plan = as_json(capsys, "gpipe(llm)", 1, 2, "llm=4/8")
    assert plan["owner"] is None
    assert plan["bubble"] == [0] and plan["programs"] == [["0F0", "0F1", "0B0", "0B1"]]


def test_layers_and_message(capsys):
    assert as_json(capsys, INLINE, 2, 4, FROZEN, "--layers", "vision=4,llm=18")["step_time"] == 100
    slow = as_json(capsys, TEXT, 4, 8, FROZEN, "--message", "0.5")
    assert slow["step_time"] > 132
    uneven = as_json(capsys, TEXT, 2, 4, "llm=4/8", "--layers", "llm=3")
    assert uneven["step_time"] == pytest.approx(4 * 16 + 8 / 3)


def test_report_and_programs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words(TRANSPOSED, 2, 2, FROZEN, "--programs")) == 0
    out = capsys.readouterr().out
    assert out.isascii() and "step time    48\nlower bound  48 (reached)\n" in out
    programs = out[out.rindex("\n\n") + 2 :]
    parts = parse_part_costs(FROZEN)
    plan = derive(TRANSPOSED, model_from_costs(parse(TRANSPOSED), parts, 2), 2, 2)
    assert from_text(programs) == plan.programs


@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_report_fits_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(words(TRANSPOSED, 8, 24, TRAINED)) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan"], "plan needs --schedule, --ranks, --micro-batches and --cost; for example"),
        (["plan", "--schedule", TEXT, "--ranks", "4", "--cost", FROZEN], "plan needs --micro-batches; for example"),
        (words(ranks=0), "--ranks: expected a whole number of at least 1 such as 4, got '0'"),
        (words(ranks="four"), "--ranks: expected a whole number of at least 1 such as 4, got 'four'"),
        (words(ranks="4.0"), "got '4.0'"),
        (words(ranks="9" * 50), "--ranks: expected a whole number of at most 4096"),
        (
            words(micro_batches=1000000000),
            "--micro-batches: expected a whole number of at most 500000, got '1000000000'",
        ),
        (words(micro_batches=-3), "--micro-batches: expected a whole number of at least 1 such as 4, got '-3'"),
        (words(ranks=4000, micro_batches=80000), "makes 320000000 cells; at most 500000"),
        (
            words("transpose(vision, owner=balanced) >> 1f1b(llm)", 8, 3000, FROZEN),
            "planning transpose(vision, owner=balanced) >> 1f1b(llm) with P = 8, M = 3000 would take about 18 minutes",
        ),
        (words(ranks=5000), "--ranks: expected a whole number of at most 4096, got '5000'"),
        (words("1f1b(llm)*999999999"), "--ranks 4 x 999999999 (of *999999999) makes"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--message", "-1"), "--message: expected a time from 0 to 1e+12 such as 0.5"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--message", "inf"), "got 'inf'"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--message", "nan"), "got 'nan'"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--message", "1e308"), "got '1e308'"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--message", "soon"), "got 'soon'"),
        (words("transpse(vision) >> 1f1b(llm)"), "did you mean 'transpose'?"),
        (words("transpose(visoin) >> 1f1b(llm)"), "did you mean 'vision'?"),
        (words(""), "expected a skeleton"),
        (words(cost=""), "expected part=FORWARD/BACKWARD such as llm=4/8"),
        (words(cost="vision=12,llm=4/8"), "'vision=12' is not a cost"),
        (words(cost="vision=12/0"), "part 'llm' of transpose(vision) >> 1f1b(llm) has no cost"),
        (words(cost="vision=9999999999999/0,llm=4/8"), "a time of 'vision' is above 1e+12; use a larger unit"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--layers", "llm"), "'llm' is not a layer count; expected part=N"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--layers", "llm=0"), "'llm=0' is not a layer count"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--layers", "llm=4,llm=4"), "part 'llm' is given twice"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--layers", "lm=4"), "part 'lm' has no --cost; did you mean 'llm'?"),
        (words(TRANSPOSED, 4, 4, FROZEN, "--layers", "llm=2"), "llm has 2 layers for 4 slabs"),
        (words(TRANSPOSED, 4, 4, FROZEN, "run.yaml"), "got 'run.yaml' together with --schedule, --ranks"),
        (["plan", TRANSPOSED, "--ranks", "4"], "put --schedule before it"),
    ],
)
def test_mistakes(capsys, argv, message):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hyperparallel: ") and message in err


def test_figure_and_trace(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    files = ["--figure", str(tmp_path / "x.svg"), "--trace", str(tmp_path / "x.json")]
    assert main(words(TRANSPOSED, 2, 2, FROZEN)) == 0
    plain = capsys.readouterr().out
    assert main(words(TRANSPOSED, 2, 2, FROZEN, *files)) == 0
    assert capsys.readouterr().out == plain
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.svg"]
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()
    names = [event["name"] for event in json.loads((tmp_path / "x.json").read_text())["traceEvents"]]
    assert {"0F0", "3B1", "2SEND_F0", "3RECV_F0", "live activations"} <= set(names)


def test_compare(capsys, tmp_path):
    figure = ["--figure", str(tmp_path / "x.svg")]
    assert main(words(INLINE, 4, 8, FROZEN, "--compare", TRANSPOSED, "--compare", TEXT, *figure)) == 0
    assert capsys.readouterr().out.endswith(
        """
step time    change   bubble %   schedule
      204         -       41.2   1f1b(vision+llm)
      156   -23.5 %       23.1   transpose(vision) >> 1f1b(llm)
      132   -35.3 %       27.3   1f1b(llm)
"""
    )
    assert (tmp_path / "x.svg").stat().st_size > 50_000


def test_compare_as_json(capsys):
    plan = as_json(capsys, INLINE, 4, 8, FROZEN, "--compare", TRANSPOSED)
    assert list(plan) == [*KEYS, "compare"] and plan["step_time"] == 204
    assert plan["compare"] == [{"schedule": TRANSPOSED, "step_time": 156, "lower_bound": 144}]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--figure", "{}/x.pdf"], "x.pdf' ends in '.pdf'; a figure ends in .svg or .png"),
        (["--figure", "{}/x"], "ends in 'no suffix'; a figure ends in .svg or .png"),
        (["--figure", "{}/no/x.svg"], "/no/x.svg' cannot be written (No such file or directory); give another path"),
        (["--trace", "{}/no/x.json"], "/no/x.json' cannot be written (No such file or directory); give another path"),
        (["--trace", "{}"], "cannot be written (it is a folder); give another path"),
        (["--figure", "{}/ok.svg", "--trace", "{}/no/x.json"], "/no/x.json' cannot be written"),
        (["--figure", "{}/x.svg", "--trace", "{}/x.svg"], "--figure and --trace name the same file"),
        (["--compare", "transpse(vision) >> 1f1b(llm)"], "did you mean 'transpose'?"),
        (["--compare", "1f1b(gen)"], "part 'gen' of 1f1b(gen) has no cost"),
        (["--compare", "1f1b(llm)*5000", "--figure", "{}/x.svg"], "(of *5000) makes"),
    ],
)
def test_mistakes_leave_no_file(capsys, tmp_path, more, message):
    assert main(words(INLINE, 4, 4, FROZEN, *[word.format(tmp_path) for word in more])) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.startswith("hyperparallel: ")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def fake_config(monkeypatch):
    """Stand in for the training package: record what is asked, answer with a small plan."""
    calls = []

    def plan_from_config(path, overrides, options):
        calls.append((path, overrides))
        parts = parse_part_costs(FROZEN)
        plan = derive(TRANSPOSED, model_from_costs(parse(TRANSPOSED), parts, 2), 2, 2)
        return Planned(plan, None), costs_from_parts(plan, parts)

    module = types.ModuleType("hyperparallel.training.plan_config")
    module.plan_from_config = plan_from_config
    monkeypatch.setitem(sys.modules, "hyperparallel.training.plan_config", module)
    return calls


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "run.yaml", "a.b=1", "c.d=2"],
        ["plan", "--programs", "run.yaml", "a.b=1", "c.d=2"],
        ["plan", "run.yaml", "--programs", "a.b=1", "c.d=2"],
        ["plan", "run.yaml", "a.b=1", "--message", "0", "c.d=2"],
    ],
)
def test_config_with_overrides_in_any_order(capsys, fake_config, argv):
    assert main(argv) == 0
    assert fake_config == [("run.yaml", ["a.b=1", "c.d=2"])]
    assert "step time    48 ms" in capsys.readouterr().out


def test_message_overrides_a_configs_message_time(capsys, fake_config):
    assert main(["plan", "run.yaml", "--message", "2.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time"] > 48


def test_compare_figure_and_trace_of_a_config(capsys, fake_config, tmp_path):
    files = ["--figure", str(tmp_path / "x.png"), "--trace", str(tmp_path / "x.json")]
    assert main(["plan", "run.yaml", "a.b=1", "--compare", "<transpose, 1f1b(slabs=[1, 2])>", *files]) == 0
    assert fake_config == [
        ("run.yaml", ["a.b=1"]),
        ("run.yaml", ["a.b=1", 'schedule="<transpose, 1f1b(slabs=[1, 2])>"']),
    ]
    assert "schedule   (times in ms)\n       48" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.png"]


def placement_of(capsys, *overrides):
    assert main(["plan", str(DIGITS), *overrides, "--placement", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["placement"]


def test_placement_counts_what_a_rank_builds(capsys):
    placement = placement_of(capsys)
    layers = build_layers(load_config(DIGITS))
    sizes = [sum(p.size for p in build_layer(layer, 0).get_parameters()) for layer in layers]
    assert [row["parameters"] for row in placement["layers"]] == sizes
    assert [row["name"] for row in placement["layers"]] == [layer.name for layer in layers]
    plan = build_plan(load_config(DIGITS), layers)
    for rank, row in enumerate(placement["ranks"]):
        stages = range(rank, plan.placement.stages, plan.ranks)
        own = sum(sum(sizes[slice(*plan.placement.slabs[stage])]) for stage in stages)
        assert row == {"parameters": own, "bytes": 4 * own, "state_bytes": 12 * own}


def test_placement_of_a_frozen_encoder_and_of_two_shards(capsys):
    whole, frozen = placement_of(capsys), placement_of(capsys, "model.vision.trainable=false")
    encoder = sum(row["parameters"] for row in whole["layers"] if row["part"] == "vision")
    for before, now in zip(whole["ranks"], frozen["ranks"], strict=True):
        assert (now["bytes"], now["state_bytes"]) == (before["bytes"], before["state_bytes"] - 12 * encoder)
    cut = placement_of(capsys, "parallel.tensor_parallel=2")
    for before, now in zip(whole["layers"], cut["layers"], strict=True):
        matrices = before["parameters"] - now["parameters"]
        assert matrices > 0.45 * before["parameters"] if "blocks" in now["name"] else matrices == 0


def test_placement_in_the_report(capsys):
    assert main(["plan", str(DIGITS), "--placement"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("llm.blocks")] == [
        ["llm.blocks.0", "llm", "0"],
        ["llm.blocks.1", "llm", "0"],
        ["llm.blocks.2", "llm", "1"],
        ["llm.blocks.3", "llm", "1"],
    ]


def test_placement_wants_a_model(capsys):
    assert main(words(TEXT, 4, 4, "llm=4/8", "--placement")) == 2
    out, err = capsys.readouterr()
    assert out == "" and "--placement counts the parameters of a model, which only a CONFIG.yaml gives" in err


FILL = "transpose(vision, owner=balanced, place=fill{}) >> 1f1b(llm)"


@pytest.mark.parametrize(
    "micro_batches, cost, split, step_time",
    [
        (4, "12/0", "", 96),
        (4, "12/0", ", split=4", 87),
        (8, "12/0", "", 144),
        (8, "12/0", ", split=4", 139),
        (8, "12/24", "", 188),
        (8, "12/24", ", split=4", 172),
    ],
)
def test_the_planner_finds_the_proven_optima(capsys, micro_batches, cost, split, step_time):
    """Source: design, section 4."""
    argv = ["--ranks", "4", "--micro-batches", str(micro_batches), "--cost", f"vision={cost},llm=4/8", "--json"]
    assert main(["plan", "--schedule", FILL.format(split), *argv]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["step_time"] == plan["certificate"]["step_time"] == step_time
    assert plan["certificate"]["bound"] >= 0.99 * step_time


def test_costs_of_every_micro_batch_come_from_a_file(capsys, tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps([[0, 0], [30, 0], [3, 0], [15, 0]]))
    argv = ["--ranks", "2", "--micro-batches", "4", "--cost", f"vision=@{file},llm=4/8"]
    assert main(["plan", "--schedule", FILL.format(""), *argv]) == 0
    assert "planned      proven optimal" in capsys.readouterr().out
    assert main(["plan", "--schedule", FILL.format(""), *argv[:3], "5", *argv[4:]]) == 2
    assert "listed for 4 micro-batches; M is 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, said",
    [
        ("[]", "expected a list of [forward, backward]"),
        ("[[1, 2], [1]]", "entry 1 is [1]"),
        ("[[1, -2]]", "entry 0 is [1, -2]"),
        ("[[1, true]]", "entry 0 is [1, true]"),
        ("nothing", "is not JSON"),
    ],
)
def test_a_wrong_file_of_costs_is_refused(capsys, tmp_path, text, said):
    file = tmp_path / "costs.json"
    file.write_text(text)
    argv = ["--ranks", "2", "--micro-batches", "1", "--cost", f"vision=@{file},llm=4/8"]
    assert main(["plan", "--schedule", TRANSPOSED, *argv]) == 2
    assert said in capsys.readouterr().err


def test_what_the_planner_decided_can_be_written(capsys, tmp_path):
    argv = [
        "--ranks",
        "2",
        "--micro-batches",
        "4",
        "--cost",
        FROZEN,
        "--engine",
        "list",
        "--out",
        str(tmp_path / "p.json"),
    ]
    assert main(["plan", "--schedule", FILL.format(", split=2"), *argv]) == 0
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["certificate"]["step_time"] >= found["certificate"]["bound"]
    assert main(["plan", "--schedule", TRANSPOSED, *argv]) == 2
    assert "leaves nothing to" in capsys.readouterr().err
