"""Compile a rank's graph with MindSpore's own Ascend front and back end, on a machine that has no Ascend.

`build` makes the stub libraries, `run_ranks` starts a script as each rank, `read_order` and `check_ranks` prove the
order of what it compiled to, `read_execution` and `check_execution` that of the kernels (level 1). Only the standard
library is used; the script that is run imports MindSpore.
"""

from hyperparallel.dryrun.execution import Kernel, check_execution, read_execution
from hyperparallel.dryrun.gist import gist
from hyperparallel.dryrun.ir_order import (
    Event,
    comm_only,
    compute_only,
    final_ir,
    marked,
    must_precede,
    read_order,
    unforced,
)
from hyperparallel.dryrun.launch import RankRun, environment, run_ranks
from hyperparallel.dryrun.ranks import check_ranks
from hyperparallel.dryrun.stubs import build, default_folder
from hyperparallel.dryrun.wheel import Wheel, find_wheel

__all__ = [
    "Event",
    "Kernel",
    "RankRun",
    "Wheel",
    "build",
    "check_execution",
    "check_ranks",
    "comm_only",
    "compute_only",
    "default_folder",
    "environment",
    "final_ir",
    "find_wheel",
    "gist",
    "marked",
    "must_precede",
    "read_execution",
    "read_order",
    "run_ranks",
    "unforced",
]
