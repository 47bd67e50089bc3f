"""`hyperparallel plan`: derive a plan from a schedule line, check it, and show its timeline and cost."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from hyperparallel.algebra import to_text
from hyperparallel.commands import scenario, search_plan
from hyperparallel.commands.arguments import UsageError, duration, file_path, seconds, whole_number
from hyperparallel.commands.plan_cases import EXAMPLE, Case, from_config, from_line
from hyperparallel.cost import lower_bound
from hyperparallel.limits import MAX_CELLS, MAX_RANKS
from hyperparallel.planner import ENGINES, Planned
from hyperparallel.planner.plan_file import to_plan_file
from hyperparallel.views import report
from hyperparallel.views.figure import check_suffix, render
from hyperparallel.views.files import write_files
from hyperparallel.views.grid import number
from hyperparallel.views.memory_curve import Curve, memory_data, memory_table, render_memory
from hyperparallel.views.perfetto import to_bytes, trace
from hyperparallel.views.placement import LayerSize, placement_data, placement_table

SUMMARY = "show what a schedule does: timeline, step time, bubbles, memory"
EPILOG = f"""\
Quote the schedule line: a shell would take >> for a redirection. Times are in any one unit.

examples:
  the encoder inside the first slab, then the same work transposed:
    hyperparallel plan --schedule "1f1b(vision+llm)" --ranks 4 --micro-batches 8 --cost vision=12/0,llm=4/8
    {EXAMPLE}
  for scripts:
    hyperparallel plan --schedule "<transpose, 1f1b>" --ranks 4 --micro-batches 8 --cost vision=12/24,llm=4/8 --json
  encodes in the bubbles, wherever they fit, the images of a micro-batch in 4 pieces (needs OR-Tools for proofs:
  pip install 'hyperparallel[plan]'):
    hyperparallel plan --schedule "transpose(vision, owner=balanced, place=fill, split=4) >> 1f1b(llm)" --ranks 4 \\
      --micro-batches 8 --cost vision=12/0,llm=4/8
  two schedules under one time axis (needs matplotlib: pip install 'hyperparallel[figure]'):
    hyperparallel plan --schedule "1f1b(vision+llm)" --ranks 4 --micro-batches 8 --cost vision=12/0,llm=4/8 \\
      --compare "transpose(vision) >> 1f1b(llm)" --figure compare.svg
  what a training configuration would run, with a value of it changed, and where its parameters are:
    hyperparallel plan CONFIG.yaml section.key=value --placement --memory
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `plan`."""
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="plan of a training configuration")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values to change in CONFIG.yaml")
    parser.add_argument("--schedule", metavar="LINE", help='such as "transpose(vision) >> 1f1b(llm)"')
    parser.add_argument("--ranks", type=whole_number(MAX_RANKS), metavar="P", help="ranks of the pipeline, at least 1")
    parser.add_argument(
        "--micro-batches", type=whole_number(MAX_CELLS), metavar="M", help="micro-batches of a step, at least 1"
    )
    parser.add_argument(
        "--cost",
        metavar="PART=F/B,...",
        help="forward/backward time of one micro-batch by part, as in vision=12/0,llm=4/8: a whole encode, and one "
        "rank's slab of the llm; backward 0 means frozen; llm=4/4/4 splits the backward in I and W. "
        "A line without names takes the parts in this order",
    )
    parser.add_argument("--layers", metavar="PART=N,...", help="layer counts by part, as in vision=4,llm=18")
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="seconds for the planner (default 10)")
    parser.add_argument(
        "--work-limit",
        type=seconds,
        metavar="W",
        help="bound the planner by work, about seconds, instead of the clock: the same input then gives the same plan",
    )
    parser.add_argument("--engine", choices=ENGINES, help="of the planner (default auto); list takes milliseconds")
    parser.add_argument("--memory-limit", metavar="LIMIT", help="for every rank, such as '6 encodes' held at a time")
    parser.add_argument(
        "--out", type=file_path, metavar="FILE", help="write what the planner decided: FILE.json, for planner.file"
    )
    parser.add_argument("--message", type=duration, metavar="ALPHA", help="time of one message (default 0)")
    parser.add_argument(
        "--compare",
        metavar="LINE",
        action="append",
        default=[],
        help="another schedule line with the same costs, for the table of step times and the figure; may be repeated",
    )
    parser.add_argument("--figure", type=file_path, metavar="FILE", help="draw the timelines: FILE.svg or FILE.png")
    parser.add_argument(
        "--trace", type=file_path, metavar="FILE", help="write the timeline for ui.perfetto.dev: FILE.json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    parser.add_argument("--programs", action="store_true", help="print also what every rank runs, messages included")
    parser.add_argument(
        "--placement",
        action="store_true",
        help="print also which ranks hold each layer, and parameters and bytes per rank; for a CONFIG.yaml",
    )
    search_plan.add_arguments(parser)
    scenario.add_arguments(parser)
    parser.add_argument(
        "--memory",
        action="store_true",
        help="print also the most that every rank holds in memory, when, and what for; for a CONFIG.yaml",
    )
    parser.add_argument(
        "--memory-figure",
        type=file_path,
        metavar="FILE",
        help="draw what every rank holds over time: FILE.svg or FILE.png",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan.

    Args:
        args: of `add_arguments`.

    Raises:
        HyperParallelError: the arguments, the schedule or the configuration do not work.

    Returns:
        0.
    """
    if args.scenario is not None:
        return scenario.run(args)
    if search_plan.asked(args):
        return search_plan.run(args)
    if args.figure is not None:
        check_suffix(args.figure)
    if args.placement and args.config is None:
        raise UsageError("--placement counts the parameters of a model, which only a CONFIG.yaml gives; name one")
    if args.memory_figure is not None:
        check_suffix(args.memory_figure)
    if (args.memory or args.memory_figure is not None) and args.config is None:
        raise UsageError("--memory follows the bytes of a model's layers, which only a CONFIG.yaml gives; name one")
    derive_line = from_config(args) if args.config is not None else from_line(args)
    cases = [derive_line(line) for line in (None, *args.compare)]
    sizes = _sizes(args) if args.placement else []
    curves = _curves(args, cases[0]) if args.memory or args.memory_figure is not None else []
    # Files first: when one cannot be written, nothing else has happened.
    _write(args, cases, curves)
    plan, costs, timeline, unit, certificate = cases[0]
    if args.json:
        compared = {"compare": [_brief(case) for case in cases[1:]]} if args.compare else {}
        placed = {"placement": placement_data(plan, sizes)} if args.placement else {}
        memory = {"memory": memory_data(curves)} if args.memory else {}
        print(json.dumps({**as_json(cases[0]), **compared, **placed, **memory}))
        return 0
    print(report(plan, costs, timeline, unit, planned=certificate))
    if args.compare:
        print("\n" + "\n".join(_table(cases)))
    if args.placement:
        print("\n" + placement_table(plan, sizes))
    if args.memory:
        print("\n" + memory_table(curves))
    if args.programs:
        print("\n" + to_text(plan.programs), end="")
    return 0


def _write(args: argparse.Namespace, cases: list[Case], curves: Sequence[Curve]) -> None:
    """Write figures, trace and plan, all or none."""
    files: dict[str, bytes] = {}
    if args.figure is not None:
        entries = [(str(case.plan.schedule), case.plan, case.costs, case.timeline) for case in cases]
        files[args.figure] = render(entries, args.figure, cases[0].unit)
    if args.trace is not None:
        if args.trace in files:
            raise UsageError(f"--figure and --trace name the same file {args.trace!r}; give two")
        plan, costs, timeline, unit, _ = cases[0]
        files[args.trace] = to_bytes(trace(plan, costs, timeline, unit or "ms"))
    if args.out is not None:
        if args.out in files:
            raise UsageError(f"--out and another option name the same file {args.out!r}; give two")
        if cases[0].certificate is None:
            raise UsageError(
                f"--out writes what the planner decided, but {cases[0].plan.schedule} leaves nothing to it; write "
                "owner=balanced or place=fill, or leave --out away"
            )
        files[args.out] = to_plan_file(Planned(cases[0].plan, cases[0].certificate)).encode()
    if args.memory_figure is not None:
        if args.memory_figure in files:
            raise UsageError(f"--memory-figure and another option name the same file {args.memory_figure!r}; give two")
        plan, _, timeline, unit, _ = cases[0]
        files[args.memory_figure] = render_memory(plan, timeline, curves, args.memory_figure, unit)
    write_files(files)


def _table(cases: list[Case]) -> list[str]:
    """Lay out the step times of all lines, and the change against the first."""
    first = cases[0].timeline.step_time
    heads = ("step time", "change", "bubble %", f"schedule{f'   (times in {cases[0].unit})' if cases[0].unit else ''}")
    rows = [heads]
    for index, (plan, _, timeline, _, _) in enumerate(cases):
        change = f"{100 * (timeline.step_time - first) / first:+.1f} %" if index and first else "-"
        total = plan.ranks * timeline.step_time
        share = f"{100 * sum(timeline.bubble) / total:.1f}" if total else "0.0"
        rows.append((number(timeline.step_time), change, share, str(plan.schedule)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["   ".join([*map(str.rjust, row[:3], widths), row[3]]) for row in rows]


def _brief(case: Case) -> dict[str, Any]:
    """Return what `--json` prints of a line of `--compare`."""
    return {
        "schedule": str(case.plan.schedule),
        "step_time": case.timeline.step_time,
        "lower_bound": lower_bound(case.plan, case.costs),
    }


def as_json(case: Case) -> dict[str, Any]:
    """Return what `--json` prints; the keys are part of the interface."""
    plan, costs, timeline, _, certificate = case
    return {
        "schedule": str(plan.schedule),
        "ranks": plan.ranks,
        "micro_batches": plan.micro_batches,
        "step_time": timeline.step_time,
        "lower_bound": lower_bound(plan, costs),
        "bubble": list(timeline.bubble),
        "peak_live": list(timeline.peak_live),
        "owner": None if plan.owner is None else list(plan.owner),
        "programs": [[str(action) for action in program] for program in plan.programs],
        "certificate": None if certificate is None else dataclasses.asdict(certificate),
    }


def _curves(args: argparse.Namespace, case: Case) -> Sequence[Curve]:
    """Follow the memory of every rank; only this needs the training package."""
    from hyperparallel.training.live_memory import curves_of_file

    return curves_of_file(args.config, args.overrides, case.plan)


def _sizes(args: argparse.Namespace) -> list[LayerSize]:
    """Count the parameters of a configuration's layers; only this builds them, with MindSpore."""
    from hyperparallel.cells.sizes import count_parameters
    from hyperparallel.cells.tensor_parallel import WHOLE
    from hyperparallel.training.build import build_layers
    from hyperparallel.training.config import load_config

    config = load_config(args.config, args.overrides)
    # Of T > 1 the layers only build inside a job; so whole ones are built, and the list says what is cut.
    pairs = zip(build_layers(config, WHOLE), build_layers(config), strict=True)
    layers = [dataclasses.replace(whole, sharded=cut.sharded) for whole, cut in pairs]
    counts = count_parameters(layers, config.parallel.tensor_parallel)
    return [LayerSize(layer.name, *count) for layer, count in zip(layers, counts, strict=True)]
