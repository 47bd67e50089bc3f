"""`scripts/ascend_dryrun.py` on a pair of networks, and what it says when it cannot run."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = str(HERE.parents[1] / "scripts" / "ascend_dryrun.py")
NETWORKS = str(HERE / "dryrun_networks.py")


def script(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "code", "said"), [("good", 0, "ranks agree"), ("both_send", 1, "stuck")])
def test_ranks_are_compiled_and_played_against_each_other(tmp_path, network, code, said):
    words = ["run", "--ranks", "2", "--save-graphs", str(tmp_path), "--", sys.executable, NETWORKS, "compile", network]
    done = script(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert "rank 0" in done.stdout and "rank 1" in done.stdout and said in done.stdout


def test_without_a_command_it_says_what_to_give():
    done = script("run", "--ranks", "2")
    assert done.returncode == 2 and "give it after --" in done.stderr and "Traceback" not in done.stderr
