"""Every code block of the README and of docs/ runs, and prints what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?P<varies><!-- output varies -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)```", re.DOTALL)
SHORT = "training.steps=2 evaluation.samples=64"
SMALL = f"{SHORT} model.vision.depth=1 model.llm.depth=1"
TINY = "model.vision.depth=1 model.llm.depth=2 training.batch_size=8 data.max_images=2"
EMULATE = "hyperparallel bench --emulate --ranks 4"
# What takes long is run in a smaller size; the rest as it stands.
SMALLER = {
    "bash scripts/demo.sh": "bash scripts/demo.sh --steps 2",
    "bash scripts/test.sh": "bash scripts/test.sh --collect-only",
    "hyperparallel train yaml/digits.yaml": f"hyperparallel train yaml/digits.yaml {SHORT}",
    "hyperparallel train yaml/files.yaml": f"hyperparallel train yaml/files.yaml {SMALL}",
    "hyperparallel bench yaml/digits_heavy.yaml": f"hyperparallel bench yaml/digits_heavy.yaml {TINY}",
    f"{EMULATE} --micro-batches 8 --cost vision=80/0,llm=20/40": (
        f"{EMULATE} --micro-batches 4 --cost vision=80/0,llm=20/40 --steps 1 --time-limit 1"
    ),
    "python scripts/emulate_table.py": "python scripts/emulate_table.py --ranks 2 --micro-batches 4 --steps 1",
}


def blocks(kind: str) -> list:
    """Find the fenced blocks of one kind, as pytest parameters."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, match in enumerate(BLOCK.finditer(path.read_text(encoding="utf-8"))):
            if match["kind"] == kind:
                slow = any(command in match["body"] for command in (*SMALLER, "python scripts", "Runner("))
                marks = [pytest.mark.slow] if slow else []
                found.append(
                    pytest.param(match["body"], bool(match["varies"]), id=f"{path.stem}-{number}", marks=marks)
                )
    return found


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run one command line as a reader would, 100 columns wide; return its exit code and what it prints."""
    environment = dict(os.environ, COLUMNS="100", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT if "scripts/" in command else folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    return done.returncode, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which `yaml/` is found and files may be written."""
    (tmp_path / "yaml").symlink_to(ROOT / "yaml")
    return tmp_path


@pytest.mark.parametrize(("body", "varies"), blocks("console"))
def test_commands_print_what_the_page_says(body, varies, folder):
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        code, printed = run(SMALLER.get(command, command), folder)
        if command in SMALLER or varies:
            assert code == 0, printed
        else:
            assert printed == expected


@pytest.mark.parametrize(("body", "varies"), blocks("python"))
def test_python_blocks_run(body, varies, folder):
    (folder / "own_model.py").write_text(body, encoding="utf-8")
    code, printed = run("python own_model.py", folder)
    assert code == 0, printed
    if "Transport.start(" in body:  # written to be started on several ranks too
        ranks = "msrun --worker_num=2 --local_worker_num=2 --master_addr=127.0.0.1 --master_port=8917 --log_dir=logs"
        assert run(f"{ranks} --join=True own_model.py", folder)[0] == 0
        logs = [(folder / f"logs/worker_{rank}.log").read_text() for rank in range(2)]
        losses = {re.search(r"loss (\S+)", text).group(1) for text in (printed, *logs)}
        assert len(losses) == 1, losses
    else:
        assert all(value in printed for value in re.findall(r"print\(.*# (.*)", body)), printed


def test_there_are_blocks():
    assert len(blocks("console")) >= 5
    assert len(blocks("python")) >= 2
