"""`hyperparallel check`: validate a table of actions that was written by hand or by another tool.

Exit codes: 0 the table is correct; 1 it is wrong or a cell is not an action; 2 it could not be read, or the
command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperparallel.algebra.exchange import LOOP, PLACEMENTS, V, check_exchanged, parse_table
from hyperparallel.algebra.lower import Programs
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import SENDS, B, F, I, W
from hyperparallel.commands.arguments import UsageError, check_size, duration, file_path, require, whole_number
from hyperparallel.cost import Costs, peak_live
from hyperparallel.cost.timeline import play
from hyperparallel.errors import DataError, PlanError, ProgramSyntaxError
from hyperparallel.json_file import read_at_most
from hyperparallel.limits import MAX_CELLS, MAX_RANKS
from hyperparallel.views.grid import number

SUMMARY = "check a schedule table (CSV) for missing work, wrong order, deadlocks"
EXAMPLE = "hyperparallel check table.csv --ranks 2 --micro-batches 2"
UNIT_COST = "F=1,I=1,W=1"
_MAX_BYTES = 2**28
"""More than the cells of a table of the largest size that is checked."""

EPILOG = f"""\
The table has one row per rank and one action per cell, blank cells are idle. Compute actions alone will do,
such as
  0F0,0F1,0B0,0B1
  1F0,1B0,1F1,1B1
and then the messages are added; with messages (0SEND_F0, 1RECV_F0, ...) these are checked too. The compute-only
CSV of torch.distributed.pipelining is such a table; its fused (0F7;7B3)OVERLAP_F_B counts as 0F7, then 7B3.

Stages are numbered in layer order, as torch does it: with --placement loop rank r holds r, P+r, ..., with v
it holds r, 2P-1-r, ... Without --placement the rows tell. HyperParallel's own number of the second stage of
rank r in a V is P+r; rows like that count as loop if that is valid, else as V.

exit codes: 0 correct, 1 wrong table, 2 unreadable file or wrong usage

examples:
  {EXAMPLE}
  hyperparallel check zbv.csv --ranks 4 --micro-batches 8 --cost {UNIT_COST}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `check`."""
    parser.add_argument("file", nargs="?", type=file_path, metavar="FILE.csv", help="the table, UTF-8")
    parser.add_argument("--ranks", type=whole_number(MAX_RANKS), metavar="P", help="ranks of the pipeline, at least 1")
    parser.add_argument(
        "--micro-batches", type=whole_number(MAX_CELLS), metavar="M", help="micro-batches of a step, at least 1"
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, help="how the stages lie on the ranks; by default as the rows say"
    )
    parser.add_argument(
        "--cost",
        metavar="KIND=TIME,...",
        help=f"time of one action of any stage, as in {UNIT_COST}, to print the step time and the peak live chunks of "
        "this order; B costs I + W unless given, messages nothing",
    )
    parser.add_argument(
        "--json", action="store_true", help=f"print one JSON object instead; --cost is then {UNIT_COST} unless given"
    )


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
    cost = UNIT_COST if args.json and args.cost is None else args.cost
    times = None if cost is None else parse_action_times(cost)
    text = _read(args.file)
    try:
        table = parse_table(text, args.file)
        placement, programs = check_exchanged(table, args.ranks, args.micro_batches, args.placement)
    except ProgramSyntaxError as error:  # names the file itself
        print(f"hyperparallel: {error}", file=sys.stderr)
        return 1
    except PlanError as error:
        print(f"hyperparallel: {args.file}: {error}", file=sys.stderr)
        return 1
    replay = None if times is None else as_json(placement, programs, times)
    if args.json:
        print(json.dumps(replay))
        return 0
    given = any(not action.is_compute for row in table for action in row)
    print(
        f"{args.file}: correct; {_contents(placement, programs)} ({'as given' if given else 'added'}), "
        f"{_regions(placement)}"
    )
    if replay is not None:
        print(f"step_time {number(replay['step_time'])}\npeak_live {' '.join(map(str, replay['peak_live']))}")
    return 0


def parse_action_times(text: str) -> dict[str, float]:
    """Parse `F=1,I=1,W=1`.

    Args:
        text: a time for F and for I and W, B or all three; B is I + W when missing, I and W are half of B.

    Raises:
        UsageError: says which entry is wrong or missing.

    Example:
        >>> parse_action_times("F=1,I=1,W=0.5")
        {'F': 1.0, 'I': 1.0, 'W': 0.5, 'B': 1.5}
    """
    times: dict[str, float] = {}
    for entry in text.split(","):
        kind, _, value = (word.strip() for word in entry.partition("="))
        if kind not in (F, B, I, W):
            raise UsageError(f"--cost {text!r}: {entry!r} is not a time of F, B, I or W; expected such as {UNIT_COST}")
        if kind in times:
            raise UsageError(f"--cost {text!r}: {kind} is given twice")
        try:
            times[kind] = duration(value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--cost {text!r}: {kind}: {error}") from None
    if F not in times or (I in times) != (W in times) or not times.keys() & {B, I}:
        raise UsageError(f"--cost {text!r}: expected F, and either I and W or B or all three, such as {UNIT_COST}")
    if I in times:
        times.setdefault(B, times[I] + times[W])
    else:
        times[I] = times[W] = times[B] / 2
    return times


def as_json(placement: Placement, programs: Programs, times: Mapping[str, float]) -> dict[str, Any]:
    """Replay a table with the same times on every stage; return what `--json` prints: keys are part of the interface.

    Args:
        placement: of `check_exchanged`.
        programs: of `check_exchanged`; messages take no time.
        times: of F, B, I and W.
    """
    compute = [[action for action in program if action.is_compute] for program in programs]
    costs = Costs({(stage, kind): time for stage in range(placement.stages) for kind, time in times.items()})
    return {
        "ranks": placement.ranks,
        "micro_batches": placement.micro_batches,
        "placement": V if placement.reflected else LOOP,
        "actions": sum(map(len, compute)),
        "cost": dict(times),
        "step_time": max(row[-1].end for row in play(compute, placement, costs) if row),
        "peak_live": list(peak_live(compute, placement)),
    }


def _read(name: str) -> str:
    """Read the table; spreadsheets put a byte order mark first, which is no part of it."""
    try:
        return read_at_most(Path(name), _MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {name}: byte {error.start} is not UTF-8; save the table as UTF-8 CSV") from None


def _contents(placement: Placement, programs: Programs) -> str:
    """Count what the programs hold."""
    actions = [action for program in programs for action in program]
    compute, messages = sum(action.is_compute for action in actions), sum(action.kind in SENDS for action in actions)
    return (
        f"ranks {placement.ranks}, micro-batches {placement.micro_batches}, {compute} compute actions, "
        f"{messages} messages"
    )


def _regions(placement: Placement) -> str:
    """List the regions by their stages."""
    texts = []
    for region, owner in enumerate(placement.owners):
        first = region * placement.ranks
        last = first + placement.ranks - 1
        backward = any(placement.gates[stage].receives_gradient for stage in range(first, last + 1))
        layout = "Sharded" if owner is None else "Replicated"
        back = f" from rank {placement.ranks - 1} back to 0" if region in placement.reflected else ""
        span = f"stages {first}-{last}" if last > first else f"stage {first}"
        texts.append(f"{span} {layout}{back}{'' if backward else ' forward-only'}")
    return ", ".join(texts)
