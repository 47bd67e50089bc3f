"""`hyperparallel plan --search`: of a model by its shapes and of a configuration; its table, JSON and refusals."""

import json
from pathlib import Path

import pytest

from hyperparallel.cli import main
from hyperparallel.commands.arguments import UsageError
from hyperparallel.commands.search_plan import plannable
from hyperparallel.planner.candidates import Layout

DIGITS = str(Path(__file__).parents[2] / "yaml" / "digits.yaml")
MODEL = ["--model", "vision=qwen2_vl_vit,llm=qwen3_8b", "--device", "ascend_910b"]
SIZES = ["--devices", "4", "--batch", "8", "--tokens", "4096", "--images", "8", "--work-limit", "0"]
FEW = ["--skeletons", "1f1b,interleaved"]


def search(capsys, *words):
    code = main(["plan", "--search", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_transpose_wins_with_a_frozen_encoder_and_memory(capsys):
    code, out, _ = search(capsys, *MODEL, *SIZES, *FEW, "--frozen", "vision", "--memory-limit", "100 GB", "--json")
    data = json.loads(out)
    assert code == 0
    rows = data["rows"]
    assert "transpose" in rows[0]["schedule"] and data["best"].startswith("transposing pays")
    assert [row["step_time"] for row in rows] == sorted(row["step_time"] for row in rows)
    assert all(row["ranks"] * row["data_parallel"] * row["tensor_parallel"] == 4 for row in rows)
    assert all(row["bytes"] <= 100e9 and 0 < row["of_text_only"] <= 1 for row in rows)

    limit = f"{rows[0]['bytes'] - 1} B"
    _, out, _ = search(capsys, *MODEL, *SIZES, *FEW, "--frozen", "vision", "--memory-limit", limit, "--json")
    assert json.loads(out)["rows"][0]["step_time"] > rows[0]["step_time"]


def test_the_table_shows_what_json_says(capsys):
    words = [*MODEL, *SIZES, "--skeletons", "1f1b", "--frozen", "vision"]
    _, out, _ = search(capsys, *words, "--json")
    data = json.loads(out)
    _, printed, _ = search(capsys, *words)
    assert f"best: {data['best']}\n" in printed
    for row in data["rows"]:
        line = next(one for one in printed.splitlines() if one.endswith(f"  {row['micro_batches']}  {row['schedule']}"))
        assert f"{row['step_time']:,.0f}" in line and f"{row['bytes'] / 1e9:.1f}" in line
    assert "within 68.7 GB a rank" in printed  # of the device file


def test_inline_wins_with_trainable_text_layers(capsys):
    words = ["--model", "llm=qwen3_8b", "--device", "ascend_910b", *SIZES[:6], "--work-limit", "0", *FEW]
    code, out, _ = search(capsys, *words, "--text-layers", "4", "--recompute", "--json")
    data = json.loads(out)
    assert code == 0 and data["best"].startswith("transposing does not pay")
    assert "transpose" not in data["rows"][0]["schedule"]
    tried = [row for row in data["rows"] if row["schedule"].startswith("transpose(text")]
    assert tried and all(row["reduce_time"] > 0 for row in tried)


def test_an_infeasible_limit_names_a_feasible_one(capsys):
    words = [*MODEL, *SIZES, "--skeletons", "1f1b", "--frozen", "vision", "--memory-limit"]
    code, _, err = search(capsys, *words, "20 GB")
    assert code == 2 and "20,000,000,000 bytes" in err
    smallest = err.partition("found needs ")[2].partition(" bytes")[0].replace(",", "")
    code, out, _ = search(capsys, *words, f"{smallest} B", "--json")
    assert code == 0 and json.loads(out)["rows"][0]["bytes"] == int(smallest)


def test_a_configuration(capsys):
    words = [DIGITS, "training.batch_size=16", "--devices", "2", "--skeletons", "1f1b", "--work-limit", "0", "--json"]
    code, out, _ = search(capsys, *words)
    data = json.loads(out)
    assert code == 0 and len(data["rows"]) >= 5
    for row in data["rows"]:
        assert row["ranks"] * row["data_parallel"] == 2
        assert 16 % (row["data_parallel"] * row["micro_batches"]) == 0
    assert any("transpose" in row["schedule"] for row in data["rows"])
    assert not any("zb" in row["schedule"] for row in data["rows"])


def test_annotate_is_never_transposed(capsys):
    words = [DIGITS, "run.mode=annotate", "training.batch_size=8", "--skeletons", "1f1b", "--work-limit", "0", "--json"]
    code, out, _ = search(capsys, *words)
    assert code == 0 and not any("transpose" in row["schedule"] for row in json.loads(out)["rows"])


def test_layouts_that_would_only_fill_the_memory_are_left_out(capsys):
    small, large = Layout(8, 1, 1, 8), Layout(8, 1, 1, 65536)
    assert plannable([small]) == [small] and capsys.readouterr().err == ""
    assert plannable([small, large]) == [small]
    assert "1 layouts with more than 500000 cells P x M are left out" in capsys.readouterr().err
    with pytest.raises(UsageError, match="P 8 x M 65536 makes 524288 cells; at most 500000"):
        plannable([large])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search"], "plan --search needs --model, --device, --devices, --batch and --tokens"),
        (["--search", *MODEL, *SIZES, "--schedule", "1f1b"], "does not go with --schedule"),
        (["--search", *MODEL, *SIZES, "--skeletons", "1f1b,zbb"], "did you mean 'zb'"),
        (["--search", *MODEL, *SIZES, "--tensor", "3"], "T = 3 does not divide 4"),
        (["--search", *MODEL, *SIZES, "--frozen", "vison"], "no part 'vison'"),
        (["--search", *MODEL, *SIZES, "--frozen", ""], "no part ''"),
        (["--schedule", "1f1b", "--model", ""], "--model: only with --search"),
        (["--search", *MODEL, *SIZES, "--batch", "65537"], "--batch: expected a whole number of at most 65536"),
        (["--search", *MODEL, *SIZES, "--images", "10001"], "a number of images from 0 to 10000"),
        (["--search", *MODEL, *SIZES, "--text-layers", "99"], "--text-layers 99"),
        (["--search", *MODEL, *SIZES, "--images", "-1"], "a number of images"),
        (["--search", *MODEL, *SIZES, "--devices", "100000"], "at most 4096"),
        (["--search", "--model", "vision=qwen2_vl_vit", *MODEL[2:], *SIZES], "no part llm"),
        (["--search", DIGITS, "--images", "4"], "CONFIG.yaml says what --images would"),
        (["--schedule", "1f1b", "--images", "4"], "--images: only with --search"),
    ],
)
def test_mistakes_are_explained(capsys, words, said):
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err
