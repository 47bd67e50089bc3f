"""Make files wrong in thousands of ways and look how the command that reads each takes it.

    python scripts/fuzz_files.py --mutants 5000 --seed 0
    python scripts/fuzz_files.py --kind plan --replay 1234

Each mutant must end with exit code 0 (it is a right file), 1 or 2, one message, within 10 s and 1 GB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

from fuzz_kinds import KINDS, make_mutant  # noqa: E402
from fuzz_worker import Tally, fuzz, judge, make_jobs, run_mutant  # noqa: E402


def main() -> int:
    """Run all mutants, or show one; 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300, help="of every kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutant; the next have the next numbers")
    parser.add_argument("--kind", default=",".join(KINDS), help="joined by commas")
    parser.add_argument("--replay", type=int, metavar="SEED", help="show one mutant of one kind and what is said of it")
    parser.add_argument("--accepted", action="store_true", help="list the seeds of mutants that were taken as right")
    args = parser.parse_args()
    kinds = args.kind.split(",")
    if args.replay is not None:
        return replay(kinds[0], args.replay)
    tallies = []
    print(f"{'kind':12} {'mutants':>7} {'exit 0':>7} {'1':>5} {'2':>6} {'slowest':>9} {'largest':>9}  problems")
    for kind in kinds:
        tallies.append(fuzz(kind, range(args.seed, args.seed + args.mutants)))
        print(row(tallies[-1]), flush=True)
    for tally in tallies:
        for seed, problem in tally.problems:
            print(f"\n{tally.kind} {seed}: {problem}")
        if args.accepted:
            print(f"\n{tally.kind}, taken as right: {' '.join(map(str, tally.accepted))}")
    return int(any(tally.problems for tally in tallies))


def row(tally: Tally) -> str:
    """Lay out a kind's numbers."""
    zero, one, two = (tally.codes[code] for code in (0, 1, 2))
    return (
        f"{tally.kind:12} {tally.mutants:7} {zero:7} {one:5} {two:6} {tally.slowest:7.1f} s {tally.largest:6.0f} MB"
        f"  {len(tally.problems)}"
    )


def replay(kind: str, seed: int) -> int:
    """Print a mutant and what its command says, in this process and without limits."""
    with tempfile.TemporaryDirectory(prefix="fuzz_") as name:
        jobs = make_jobs(kind, Path(name) / "right")
        mutant = make_mutant(jobs, kind, seed)
        print(f"{mutant.name}{', its checksum put right' if mutant.resealed else ''}:")
        print(mutant.content.decode("utf-8", "backslashreplace")[:5000])
        result = run_mutant(jobs, kind, seed, Path(name) / "work")
        print(f"\n{result['stderr']}exit {result['code']}, {result['seconds']:.2f} s, {result['megabytes']:.0f} MB")
        problem = judge(result)
        print(f"problem: {problem}" if problem else "no problem")
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
