"""`hyperparallel check`: exit 0 for correct tables, 1 for wrong ones with the cell marked, 2 for the rest."""

import json
from pathlib import Path

import pytest

from hyperparallel import derive, parse
from hyperparallel.algebra import to_csv
from hyperparallel.algebra.exchange import to_torch_csv
from hyperparallel.cli import main
from hyperparallel.cost import model_from_costs, parse_part_costs

SIZE = ("--ranks", "2", "--micro-batches", "2")
TORCH = Path(__file__).parents[1] / "data_torch"
V_TABLE = "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n1F0,1F1,2F0,2B0,2F1,2B1,1B0,1B1\n"
TWO = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def table_of(line, ranks, micro_batches, cost, messages):
    schedule, parts = parse(line), parse_part_costs(cost)
    plan = derive(schedule, model_from_costs(schedule, parts, ranks), ranks, micro_batches)
    return to_csv(plan.programs if messages else plan.compute)


def check(tmp_path, content, ranks=2, micro_batches=2, *options):
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return main(["check", str(path), "--ranks", str(ranks), "--micro-batches", str(micro_batches), *options])


@pytest.mark.parametrize(
    ("content", "ranks", "micro_batches", "expected"),
    [
        (TWO, 2, 2, "ranks 2, micro-batches 2, 8 compute actions, 4 messages (added), stages 0-1 Sharded"),
        (b"\xef\xbb\xbf" + TWO.replace("\n", "\r\n").encode(), 2, 2, "8 compute actions"),
        (TWO.replace(",", " , ,") + "\n\n", 2, 2, "8 compute actions"),
        ("0F0,0F1\n1F0,1F1\n", 2, 2, "4 compute actions, 2 messages (added), stages 0-1 Sharded forward-only"),
        ("0F0,0B0\n", 1, 1, "ranks 1, micro-batches 1, 2 compute actions, 0 messages (added), stage 0 Sharded"),
        (
            table_of("transpose(vision) >> 1f1b(llm)", 4, 8, "vision=12/0,llm=4/8", messages=True),
            4,
            8,
            "72 compute actions, 54 messages (as given), stages 0-3 Replicated forward-only, stages 4-7 Sharded",
        ),
        (
            table_of("transpose(vision) >> gpipe(llm)", 2, 3, "vision=1/2,llm=4/8", messages=False),
            2,
            3,
            "18 compute actions, 8 messages (added), stages 0-1 Replicated, stages 2-3 Sharded",
        ),
    ],
)
def test_correct(tmp_path, capsys, content, ranks, micro_batches, expected):
    assert check(tmp_path, content, ranks, micro_batches) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 1
    assert "table.csv: correct; " in out and expected in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1\n", "rank 1, step 2: 1B1 runs before 1F1, which it needs"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", "1B1 is missing"),
        ("0F0,0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", ">0F0<"),
        ("0F0,0F7,0B0,0B7\n1F0,1B0,1F7,1B7\n", "micro-batches are 0..1"),
        ("0F0,0F1x,0B0,0B1\n1F0,1B0,1F1,1B1\n", "table.csv, row 1, column 2: '0F1x' is not an action"),
        ('0F0,"0F1\n', "not a CSV table"),
        ("0F0\n", "the table has 1 rows for 2 ranks"),
        ("", "the table has 0 rows for 2 ranks"),
        (V_TABLE.replace("2F0,2B0", "2B0,2F0"), "rank 1, step 2: 2B0 runs before 2F0, which it needs"),
        (V_TABLE.replace("3B1", "3B7"), ">3B7<"),
        ("0F0,(3F0;0F1)OVERLAP_F_B\n1F0,2F0\n", "table.csv, row 1, column 2: '(3F0;0F1)OVERLAP_F_B' does not fuse"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",), ("--cost", "F=1,B=2")])
def test_wrong_table(tmp_path, capsys, content, message, options):
    assert check(tmp_path, content, 2, 2, *options) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hyperparallel: ") and "table.csv" in err and message in err


@pytest.mark.parametrize("content", [b"\xff\xfe0\x00", b"0F0,\xe9\n"])
def test_not_utf8(tmp_path, capsys, content):
    assert check(tmp_path, content) == 2
    assert "is not UTF-8; save the table as UTF-8 CSV" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["missing.csv", "--ranks", "2", "--micro-batches", "2"], "cannot read missing.csv: No such file or directory"),
        (["/", "--ranks", "2", "--micro-batches", "2"], "cannot read /: Is a directory"),
        ([], "check needs a FILE.csv"),
        (["a.csv"], "check needs --ranks and --micro-batches"),
        (["a.csv", "b.csv", "--ranks", "2", "--micro-batches", "2"], "'b.csv' is one word too many"),
        (["a.csv", "--ranks", "0", "--micro-batches", "2"], "--ranks: expected a whole number of at least 1"),
        (["a.csv", "--ranks", "4", "--micro-batches", "90000000"], "at most 500000"),
        (["a.csv", "--rank", "4"], "unknown option --rank; did you mean '--ranks'?"),
        (["a.csv", *SIZE, "--placement", "x"], "--placement: invalid choice: 'x'"),
        (["a.csv", *SIZE, "--cost", ""], "'' is not a time of F, B, I or W; expected such as F=1,I=1,W=1"),
        (["a.csv", *SIZE, "--cost", "F=1,llm=4/8"], "'llm=4/8' is not a time of F, B, I or W"),
        (["a.csv", *SIZE, "--cost", "F=1,B=-2"], "B: expected a time from 0 to 1e+12 such as 0.5, got '-2'"),
        (["a.csv", *SIZE, "--cost", "F,B=2"], "F: expected a time from 0"),
        (["a.csv", *SIZE, "--cost", "F=1,F=1"], "F is given twice"),
        (["a.csv", *SIZE, "--cost", "F=1"], "expected F, and either I and W or B or all three"),
        (["a.csv", *SIZE, "--cost", "F=1,I=1"], "expected F, and either I and W"),
        (["a.csv", *SIZE, "--cost", "F=1,I=1,B=2"], "expected F, and either I and W"),
        (["a.csv", *SIZE, "--cost", "I=1,W=1"], "expected F, and either I and W"),
    ],
)
def test_usage(capsys, argv, message):
    assert main(["check", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err


@pytest.mark.parametrize(
    ("cost", "step_time"),
    [
        ("F=1,I=1,W=1", "9"),
        ("F=1,B=2", "9"),
        (" B = 4 , F = 1 ", "15"),
        ("F=1,I=1,W=1,B=4", "15"),
        ("F=0.5,I=0.25,W=0.25", "3"),
        ("F=0,B=0", "0"),
    ],
)
def test_cost(tmp_path, capsys, cost, step_time):
    assert check(tmp_path, TWO, 2, 2, "--cost", cost) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "correct" in first and rest == [f"step_time {step_time}", "peak_live 2 1"]


@pytest.mark.parametrize(
    ("name", "placement", "step_time", "peak_live"),
    [
        ("Interleaved1F1B", "loop", 57, [11, 9, 7, 5]),
        ("InterleavedZeroBubble", "loop", 51, [8] * 4),
        ("ZBVZeroBubble", "v", 51, [8] * 4),
        ("DualPipeV", "v", 51, [9] * 4),
    ],
)
def test_json_of_the_tables_of_torch(capsys, name, placement, step_time, peak_live):
    for options in ((), ("--placement", placement), ("--cost", "F=1,I=1,W=1")):
        path = str(TORCH / f"{name}_p4_m8.csv")
        assert main(["check", path, "--ranks", "4", "--micro-batches", "8", "--json", *options]) == 0
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert err == "" and out.count("\n") == 1
        assert found.pop("actions") in (128, 150, 192)
        assert found == {
            "ranks": 4,
            "micro_batches": 8,
            "placement": placement,
            "cost": {"F": 1, "I": 1, "W": 1, "B": 2},
            "step_time": step_time,
            "peak_live": peak_live,
        }


def test_both_numberings_of_a_v(tmp_path, capsys):
    plan = derive(parse("zb(llm, fold=v)"), model_from_costs(parse("zb(llm)"), parse_part_costs("llm=1/2"), 2), 2, 4)
    for content in (to_torch_csv(plan), to_csv(plan.compute), to_csv(plan.programs)):
        for options in ((), ("--placement", "v")):
            assert check(tmp_path, content, 2, 4, *options) == 0
            assert "stages 0-1 Sharded, stages 2-3 Sharded from rank 1 back to 0" in capsys.readouterr().out
        assert check(tmp_path, content, 2, 4, "--placement", "loop") == 1
        assert "hyperparallel: " in capsys.readouterr().err


def test_a_file_without_an_end_is_not_read_to_it(capsys, monkeypatch):
    monkeypatch.setattr("hyperparallel.commands.check._MAX_BYTES", 1000)
    assert main(["check", "/dev/zero", "--ranks", "2", "--micro-batches", "2"]) == 2
    assert capsys.readouterr().err == "hyperparallel: cannot read /dev/zero: it has more than 1,000 bytes\n"
