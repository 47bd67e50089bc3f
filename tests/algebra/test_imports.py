import subprocess
import sys

import pytest

MODULES = [
    "hyperparallel",
    "hyperparallel.algebra",
    "hyperparallel.cost",
    "hyperparallel.planner",
    "hyperparallel.views",
]


@pytest.mark.parametrize("module", MODULES)
def test_mindspore_is_not_imported(module):
    code = f"import sys, {module}; print(any(name.split('.')[0] == 'mindspore' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
