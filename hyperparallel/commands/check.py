"""`hyperparallel check`: validate a table of actions that was written by hand or by another tool.

Exit codes: 0 the table is correct; 1 it is wrong or a cell is not an action; 2 it could not be read, or the
command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hyperparallel.algebra import check_table, from_csv
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import SENDS
from hyperparallel.commands.arguments import UsageError, check_size, require, whole_number
from hyperparallel.errors import DataError, PlanError, ProgramSyntaxError

SUMMARY = "check a schedule table (CSV) for missing work, wrong order, deadlocks"
EXAMPLE = "hyperparallel check table.csv --ranks 2 --micro-batches 2"
EPILOG = f"""\
The table has one row per rank and one action per cell, blank cells are idle. Compute actions alone will do,
such as
  0F0,0F1,0B0,0B1
  1F0,1B0,1F1,1B1
and then the messages are added; with messages (0SEND_F0, 1RECV_F0, ...) these are checked too.

exit codes: 0 correct, 1 wrong table, 2 unreadable file or wrong usage

example:
  {EXAMPLE}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `check`."""
    parser.add_argument("file", nargs="?", metavar="FILE.csv", help="the table, UTF-8")
    parser.add_argument("--ranks", type=whole_number, metavar="P", help="ranks of the pipeline, at least 1")
    parser.add_argument("--micro-batches", type=whole_number, metavar="M", help="micro-batches of a step, at least 1")


def run(args: argparse.Namespace) -> int:
    """Check the table and print one line about it, or the first error with the cell marked.

    Args:
        args: of `add_arguments`.

    Raises:
        HyperParallelError: the file cannot be read or the arguments do not work; a wrong table does not raise.

    Returns:
        0 when the table is correct, else 1.
    """
    if args.file is None:
        raise UsageError(f"check needs a FILE.csv; for example\n  {EXAMPLE}")
    require("check", EXAMPLE, ranks=args.ranks, micro_batches=args.micro_batches)
    check_size(args.ranks, args.micro_batches)
    text = _read(args.file)
    try:
        table = from_csv(text, args.file)
        placement, programs = check_table(table, args.ranks, args.micro_batches)
    except ProgramSyntaxError as error:  # names the file itself
        print(f"hyperparallel: {error}", file=sys.stderr)
        return 1
    except PlanError as error:
        print(f"hyperparallel: {args.file}: {error}", file=sys.stderr)
        return 1
    actions = [action for program in programs for action in program]
    compute, messages = sum(action.is_compute for action in actions), sum(action.kind in SENDS for action in actions)
    given = any(not action.is_compute for row in table for action in row)
    print(
        f"{args.file}: correct; ranks {args.ranks}, micro-batches {args.micro_batches}, {compute} compute actions, "
        f"{messages} messages ({'as given' if given else 'added'}), {_regions(placement)}"
    )
    return 0


def _read(name: str) -> str:
    """Read the table; spreadsheets put a byte order mark first, which is no part of it."""
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {name}: byte {error.start} is not UTF-8; save the table as UTF-8 CSV") from None


def _regions(placement: Placement) -> str:
    """List the regions by their stages."""
    texts = []
    for region, owner in enumerate(placement.owners):
        first = region * placement.ranks
        last = first + placement.ranks - 1
        backward = any(placement.gates[stage].receives_gradient for stage in range(first, last + 1))
        layout = "Sharded" if owner is None else "Replicated"
        span = f"stages {first}-{last}" if last > first else f"stage {first}"
        texts.append(f"{span} {layout}{'' if backward else ' forward-only'}")
    return ", ".join(texts)
