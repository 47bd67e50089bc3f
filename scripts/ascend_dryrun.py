"""Compile for Ascend without Ascend: build the stub libraries, run a script as one rank or as all ranks, check them.

    python scripts/ascend_dryrun.py build
    python scripts/ascend_dryrun.py run --ranks 4 --save-graphs graphs -- python script.py

Each rank prints one line, a failed one the compiler's message too. With --save-graphs all ranks' messages are played
against each other (with --level 1 the streams too). Exit status 0: every rank passed and nothing was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from hyperparallel.dryrun import (
    build,
    check_execution,
    check_ranks,
    comm_only,
    default_folder,
    final_ir,
    gist,
    read_order,
    run_ranks,
    unforced,
)
from hyperparallel.errors import HyperParallelError


def main(arguments: list[str]) -> int:
    """Run the command line; return its exit status."""
    args = _parser().parse_args(arguments)
    try:
        return _build(args) if args.action == "build" else _run(args)
    except HyperParallelError as error:
        print(f"ascend_dryrun: {error}", file=sys.stderr)
        return 2


def _build(args: argparse.Namespace) -> int:
    start = time.monotonic()
    wheel = build(args.stubs, args.python, force=args.force)
    print(f"stubs for {wheel.folder} in {args.stubs} ({time.monotonic() - start:.1f} s)")
    return 0


def _run(args: argparse.Namespace) -> int:
    command = args.command[args.command[:1] == ["--"] :]
    if not command:
        raise HyperParallelError("no command to run; give it after --, as in: -- python script.py")
    runs = run_ranks(
        command,
        args.ranks,
        args.rank,
        level=args.level,
        save_graphs=args.save_graphs,
        passes=args.passes,
        timeout=args.timeout,
        jobs=args.jobs,
        folder=args.stubs,
    )
    for run in runs:
        how = "ok" if run.passed else "too slow" if run.returncode is None else f"failed with {run.returncode}"
        print(f"rank {run.rank}: {how}, {run.seconds:.1f} s")
        if not run.passed or args.verbose:
            print(run.output if args.verbose else gist(run.output))
    if not all(run.passed for run in runs):
        return 1
    if args.save_graphs is None or len(runs) < args.ranks:
        return 0
    return _check(args)


def _check(args: argparse.Namespace) -> int:
    """Check all ranks' graphs against each other."""
    folders = [args.save_graphs / f"rank_{rank}" for rank in range(args.ranks)]
    orders = [read_order(final_ir(folder), groups=args.groups) for folder in folders]
    problems = [f"rank {rank}: not held in order: {a} / {b}" for rank, o in enumerate(orders) for a, b in unforced(o)]
    problems += check_ranks(orders)
    if args.level == 1:
        problems += check_execution(folders)
    print("\n".join(problems) or f"all ranks agree: {sum(len(comm_only(o)) for o in orders)} communication operators")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    actions = parser.add_subparsers(dest="action", required=True)
    sub = actions.add_parser("build", help="generate the stub libraries")
    sub.add_argument("--python", default=sys.executable, help="interpreter that has mindspore")
    sub.add_argument("--force", action="store_true", help="generate them even if they are up to date")
    _add_stubs(sub)
    sub = actions.add_parser("run", help="run a command as every rank, or as some")
    _add_stubs(sub)
    sub.add_argument("--ranks", type=int, required=True, help="number of ranks to pretend")
    sub.add_argument("--rank", type=int, action="append", help="a rank to run; may be repeated (default: all)")
    sub.add_argument("--level", type=int, default=0, choices=(0, 1), help="0: front end; 1: back end too (default 0)")
    sub.add_argument("--save-graphs", type=Path, metavar="FOLDER", help="keep the graphs in FOLDER/rank_R; check them")
    sub.add_argument("--passes", default="validate", help="which graphs to save: a pass, or all (default %(default)s)")
    sub.add_argument("--groups", type=json.loads, metavar="JSON", help="ranks of your own groups: '{\"tp0\": [0, 1]}'")
    sub.add_argument("--timeout", type=float, default=600.0, help="seconds allowed to a rank (default %(default)s)")
    sub.add_argument("--jobs", type=int, default=2, help="ranks at a time (default %(default)s)")
    sub.add_argument("--verbose", action="store_true", help="print all that every rank printed")
    sub.add_argument("command", nargs=argparse.REMAINDER, help="-- python script.py arguments")
    return parser


def _add_stubs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stubs", type=Path, default=default_folder(), help="folder of the stub libraries (default: %(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
