"""The command line as a whole: finding commands, help, exit codes, and that planning never starts MindSpore."""

import subprocess
import sys
import types

import pytest
from test_export import write_checkpoint

from hyperparallel import HyperParallelError, commands
from hyperparallel.cli import main

PLAN = ["plan", "--schedule", "1f1b(llm)", "--ranks", "16", "--micro-batches", "500", "--cost", "llm=4/8"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["paln"],
            "unknown command 'paln'; expected plan, check, plot, export, train, bench, profile, dryrun; "
            "did you mean 'plan'?",
        ),
        (["--verison"], "unknown option --verison; did you mean '--version'?"),
        (["plan", "--scheduel", "1f1b(llm)"], "unknown option --scheduel; did you mean '--schedule'?"),
        (["plan", "--rank=4"], "unknown option --rank; did you mean '--ranks'?"),
        (["--json", "plan"], "--json is an option of a command, so write it after the command"),
        (["bench", "-z"], "unknown option -z; expected one of --help"),
        (["plan", "--ranks"], "--ranks: expected one argument; see hyperparallel plan --help"),
        (["train"], "train needs a CONFIG.yaml"),
        (["bench"], "bench needs a CONFIG.yaml"),
    ],
)
def test_wrong_usage(capsys, argv, message):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hyperparallel: ") and message in err


@pytest.mark.parametrize("argv", [["--help"], ["plan", "--help"], ["check", "-h"], ["train", "--help"]])
def test_help(capsys, argv):
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: hyperparallel")


def test_no_command_shows_the_help_and_fails(capsys):
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hyperparallel ")


def stand_in(monkeypatch, name, run):
    """Put a module in the place of a command that needs MindSpore."""
    module = types.ModuleType(f"hyperparallel.commands.{name}")
    module.run = run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(commands, name, module, raising=False)


@pytest.mark.parametrize("name", ["train", "bench"])
def test_config_and_overrides_reach_the_command(monkeypatch, name):
    seen = []
    stand_in(monkeypatch, name, lambda args: seen.append((args.config, args.overrides)) or 7)
    assert main([name, "run.yaml", "a.b=1", "c.d=[1,2]"]) == 7
    assert seen == [("run.yaml", ["a.b=1", "c.d=[1,2]"])]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (HyperParallelError("the sentence"), 2, "hyperparallel: the sentence\n"),
        (KeyboardInterrupt(), 130, "hyperparallel: interrupted\n"),
    ],
)
def test_errors_of_a_command_become_exit_codes(monkeypatch, capsys, error, code, text):
    def run(args):
        raise error

    stand_in(monkeypatch, "train", run)
    assert main(["train", "run.yaml"]) == code
    assert capsys.readouterr().err == text


def test_a_programming_error_keeps_its_traceback(monkeypatch):
    stand_in(monkeypatch, "train", lambda args: {}["no such key"])
    with pytest.raises(KeyError):
        main(["train", "run.yaml"])


def test_planning_does_not_import_mindspore():
    code = f"import sys; from hyperparallel.cli import main; main({PLAN!r}); sys.exit('mindspore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error():
    command = subprocess.Popen(
        [sys.executable, "-m", "hyperparallel", *PLAN, "--programs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    command.stdout.readline()
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait(timeout=60) == 141


LONG = "x" * 5000
PLANNED = [*PLAN[:2], "transpose(vision, owner=balanced) >> 1f1b(llm)", "--ranks", "2", "--micro-batches", "2"]
COST = ["--cost", "vision=1/1,llm=4/8"]


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", f"{LONG}.yaml"],
        *([*PLANNED, *COST, option, f"{LONG}{end}"] for option, end in (("--out", ".json"), ("--trace", ".json"))),
        [*PLANNED, "--cost", f"vision=@{LONG},llm=4/8"],
        ["plan", "--scenario", LONG],
        ["check", LONG, "--ranks", "2", "--micro-batches", "2"],
        ["plot", LONG],
        ["plot", ".", "--out", f"{LONG}.png"],
        ["export", LONG, "out.safetensors"],
        ["export", "run", f"{LONG}.safetensors"],
        ["export", "run", f"{LONG}/out.safetensors"],
        ["export", "run", LONG, "--force"],
    ],
)
def test_a_name_that_is_too_long_is_no_file(capsys, tmp_path, monkeypatch, argv):
    """The system refuses even the question whether there is such a file."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "run")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("hyperparallel: ")
