"""`hyperparallel bench --emulate`: run schedule lines on emulated devices, beside the prediction."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from hyperparallel.commands.arguments import (
    UsageError,
    check_size,
    file_path,
    option_name,
    require,
    seconds,
    whole_number,
)
from hyperparallel.cost import parse_part_costs
from hyperparallel.limits import MAX_CELLS, MAX_RANKS, MAX_STEPS, MAX_TIME
from hyperparallel.planner import Settings
from hyperparallel.training.emulated_lines import (
    JOB,
    PROGRESS,
    RESULT,
    Line,
    Setting,
    default_lines,
    job_of,
    plan_for,
)
from hyperparallel.training.job import has_starter, new_run_folder, run_folder, run_job, say
from hyperparallel.training.launch import is_worker

EXAMPLE = "hyperparallel bench --emulate --ranks 4 --micro-batches 8 --cost vision=40/80,llm=20/40"
EPILOG = f"""\
With --emulate no model is trained: real processes exchange real messages by the plan's programs, and a stage computes
by sleeping. What a step takes beyond its prediction is then what the runtime costs.

examples:
  hyperparallel bench CONFIG.yaml
  {EXAMPLE}
"""
MOST_RANKS, MOST_SECONDS, MOST_BYTES = 64, 600, 2**30
_OUT = "runs/emulate"
_OPTIONS = ("schedule", "ranks", "micro_batches", "cost", "unit_ms", "message_bytes", "steps", "time_limit", "out")
_DEFAULTS = {"unit_ms": 1.0, "message_bytes": 4096, "steps": 5, "time_limit": 10.0, "out": _OUT}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench`, besides the configuration."""
    parser.add_argument("--emulate", action="store_true", help="run schedule lines on devices that only sleep")
    parser.add_argument(
        "--schedule", metavar="LINE", help="first line to run (default: the encoder inline, alone and transposed)"
    )
    parser.add_argument("--compare", metavar="LINE", action="append", default=[], help="another line; may be repeated")
    parser.add_argument("--ranks", type=whole_number(MAX_RANKS), metavar="P", help=f"processes, from 1 to {MOST_RANKS}")
    parser.add_argument(
        "--micro-batches", type=whole_number(MAX_CELLS), metavar="M", help="micro-batches of a step, at least 1"
    )
    parser.add_argument("--cost", metavar="PART=F/B,...", help="times by part as for `plan`, the backbone last")
    parser.add_argument("--unit-ms", type=_unit, metavar="U", help="milliseconds of a unit of --cost (default 1)")
    parser.add_argument(
        "--message-bytes", type=whole_number(MOST_BYTES), metavar="N", help="size of a message (default 4096)"
    )
    parser.add_argument(
        "--steps", type=whole_number(MAX_STEPS), metavar="K", help="measured steps of every line (default 5)"
    )
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="seconds for the planner (default 10)")
    parser.add_argument("--out", type=file_path, metavar="DIR", help=f"folder for runs (default {_OUT})")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")


def given(args: argparse.Namespace) -> list[str]:
    """List the options of `--emulate` that a command line holds."""
    names = [name for name in (*_OPTIONS, "compare", "json") if getattr(args, name) not in (None, [], False)]
    return [option_name(name) for name in names]


def run(args: argparse.Namespace) -> int:
    """Plan the lines, let the ranks run them, and print the comparison.

    Args:
        args: of `add_arguments`.

    Raises:
        HyperParallelError: a mistake in the arguments or a line, or a rank that failed.

    Returns:
        0.
    """
    if is_worker():
        if not has_starter():
            raise UsageError("bench --emulate starts its ranks itself; run it without msrun")
        from hyperparallel.training.emulate import work

        work(run_folder(_OUT))
        return 0
    lines = _lines(args)
    tell = (lambda doing: None) if args.json else say
    result = summarise(lines, measure(lines, _value(args, "steps"), _value(args, "out"), tell))
    say(json.dumps(result) if args.json else "\n" + report(result))
    return 0


def measure(lines: Sequence[Line], steps: int, out: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Let the ranks run planned lines in one job.

    Args:
        lines: planned for the same P.
        steps: measured steps of every line.
        out: folder for runs.
        tell: told what is being done.

    Raises:
        HyperParallelError: the folder cannot be made, or a rank failed.

    Returns:
        What `hyperparallel.training.emulate.emulate` returned.
    """
    folder, ranks = new_run_folder(out), lines[0].plan.ranks
    (folder / JOB).write_text(json.dumps(job_of(lines, steps)), encoding="utf-8")
    tell(f"emulating {ranks} devices; run folder {folder}")
    arguments = ["-m", "hyperparallel", "bench", "--emulate"]
    run_job(arguments, ranks, folder, PROGRESS, lambda line: tell(line["doing"] + " ..."))
    return json.loads((folder / RESULT).read_text(encoding="utf-8"))


def _value(args: argparse.Namespace, name: str) -> Any:
    """Return an option or its default; parsed options stay None, so that `given` can tell."""
    value = getattr(args, name)
    return _DEFAULTS[name] if value is None else value


def _unit(text: str) -> float:
    """Read `--unit-ms`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_TIME:
        raise argparse.ArgumentTypeError(f"expected milliseconds above 0 such as 20, got {text!r}")
    return value


def _lines(args: argparse.Namespace) -> list[Line]:
    """Plan the lines that were asked for."""
    require("bench --emulate", EXAMPLE, ranks=args.ranks, micro_batches=args.micro_batches, cost=args.cost)
    check_size(args.ranks, args.micro_batches)
    if args.ranks > MOST_RANKS:
        raise UsageError(f"--ranks {args.ranks}: every rank is a process of this machine; at most {MOST_RANKS}")
    parts = parse_part_costs(args.cost)
    texts = [*([args.schedule] if args.schedule is not None else []), *args.compare]
    texts = texts if args.schedule is not None else [*default_lines(parts, args.ranks), *texts]
    unit, size = _value(args, "unit_ms") / 1e3, _value(args, "message_bytes")
    planner = Settings(time_limit_s=_value(args, "time_limit"))
    setting = Setting(parts, args.ranks, args.micro_batches, unit, size, planner)
    lines = [plan_for(text, setting) for text in texts]
    for line in lines:
        if not 0 < (seconds := line.predicted(0.0, 0.0)) <= MOST_SECONDS:
            raise UsageError(
                f"a step of {line.plan.schedule} would take {seconds:.3g} s; only more than 0 and at most "
                f"{MOST_SECONDS} s are emulated, so change --cost or --unit-ms"
            )
    return lines


def summarise(lines: Sequence[Line], result: dict[str, Any]) -> dict[str, Any]:
    """Put the prediction beside what was measured.

    Args:
        lines: as they were run.
        result: what `hyperparallel.training.emulate.emulate` returned.

    Returns:
        What `--json` prints, times in milliseconds; the keys are part of the interface.
    """
    alpha, beta = result["alpha"], result["beta"]
    rows = []
    for line, row in zip(lines, result["rows"], strict=True):
        times, predicted = row["measured"], line.predicted(alpha, beta)
        rows.append(
            {
                "schedule": str(line.plan.schedule),
                "predicted": predicted * 1e3,
                "measured": median(times) * 1e3,
                "fastest": min(times) * 1e3,
                "slowest": max(times) * 1e3,
                "walk": median(row["walk"]) * 1e3,
                "measured_over_predicted": median(times) / predicted,
                "over_first": median(times) / median(result["rows"][0]["measured"]),
                "in_order": row["in_order"],
            }
        )
    return {
        "machine": result["machine"],
        "ranks": lines[0].plan.ranks,
        "micro_batches": lines[0].plan.micro_batches,
        "alpha_ms": alpha * 1e3,
        "beta_ms_per_mib": beta * 2**20 * 1e3,
        "rows": rows,
    }


def report(result: dict[str, Any]) -> str:
    """Lay the result out as a table.

    Args:
        result: of `summarise`.

    Returns:
        Lines of text.
    """
    lines = [
        f"machine  {result['machine']}",
        f"P = {result['ranks']}, M = {result['micro_batches']}; a message takes {result['alpha_ms']:.2f} ms + "
        f"{result['beta_ms_per_mib']:.2f} ms per MiB",
        "",
        f"{'predicted':>10} {'measured, ms':>27} {'m / p':>7} {'time / first':>13}   schedule",
    ]
    for row in result["rows"]:
        measured = f"{row['measured']:.0f} ({row['fastest']:.0f} - {row['slowest']:.0f})"
        lines.append(
            f"{row['predicted']:10.0f} {measured:>27} {row['measured_over_predicted']:7.3f} {row['over_first']:13.3f}"
            f"   {row['schedule']}{'' if row['in_order'] else '   NOT IN THE ORDER OF THE PLAN'}"
        )
    return "\n".join([*lines, "", "measured: median step (fastest - slowest)"])
