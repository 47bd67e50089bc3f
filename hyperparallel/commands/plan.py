"""`hyperparallel plan`: derive a plan from a schedule line, check it, and show its timeline and cost."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hyperparallel.algebra import Plan, derive, parse, to_text, validate
from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.commands.arguments import (
    MAX_TIME,
    UsageError,
    check_size,
    duration,
    option_name,
    require,
    whole_number,
)
from hyperparallel.cost import (
    Costs,
    PartCost,
    Timeline,
    costs_from_parts,
    lower_bound,
    model_from_costs,
    parse_part_costs,
    simulate,
)
from hyperparallel.views import report
from hyperparallel.views.figure import check_suffix, render
from hyperparallel.views.files import write_files
from hyperparallel.views.grid import number
from hyperparallel.views.perfetto import to_bytes, trace
from hyperparallel.views.placement import LayerSize, placement_data, placement_table

SUMMARY = "show what a schedule does: timeline, step time, bubbles, memory"
EXAMPLE = (
    'hyperparallel plan --schedule "transpose(vision) >> 1f1b(llm)" --ranks 4 --micro-batches 8 '
    "--cost vision=12/0,llm=4/8"
)
EPILOG = f"""\
Quote the schedule line: a shell would take >> for a redirection. Times are in any one unit.

examples:
  the encoder inside the first slab, then the same work transposed:
    hyperparallel plan --schedule "1f1b(vision+llm)" --ranks 4 --micro-batches 8 --cost vision=12/0,llm=4/8
    {EXAMPLE}
  for scripts:
    hyperparallel plan --schedule "<transpose, 1f1b>" --ranks 4 --micro-batches 8 --cost vision=12/24,llm=4/8 --json
  two schedules under one time axis (needs matplotlib: pip install 'hyperparallel[figure]'):
    hyperparallel plan --schedule "1f1b(vision+llm)" --ranks 4 --micro-batches 8 --cost vision=12/0,llm=4/8 \\
      --compare "transpose(vision) >> 1f1b(llm)" --figure compare.svg
  what a training configuration would run, with a value of it changed, and where its parameters are:
    hyperparallel plan CONFIG.yaml section.key=value --placement
"""

_LINE_ONLY = ("schedule", "ranks", "micro_batches", "cost", "layers")
_MAX_LAYERS = 10_000


class Case(NamedTuple):
    """A schedule line with all that follows from it."""

    plan: Plan
    costs: Costs
    timeline: Timeline
    unit: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `plan`."""
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="plan of a training configuration")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values to change in CONFIG.yaml")
    parser.add_argument("--schedule", metavar="LINE", help='such as "transpose(vision) >> 1f1b(llm)"')
    parser.add_argument("--ranks", type=whole_number, metavar="P", help="ranks of the pipeline, at least 1")
    parser.add_argument("--micro-batches", type=whole_number, metavar="M", help="micro-batches of a step, at least 1")
    parser.add_argument(
        "--cost",
        metavar="PART=F/B,...",
        help="forward/backward time of one micro-batch by part, as in vision=12/0,llm=4/8: a whole encode, and one "
        "rank's slab of the llm; backward 0 means frozen; llm=4/4/4 splits the backward in I and W. "
        "A line without names takes the parts in this order",
    )
    parser.add_argument("--layers", metavar="PART=N,...", help="layer counts by part, as in vision=4,llm=18")
    parser.add_argument("--message", type=duration, metavar="ALPHA", help="time of one message (default 0)")
    parser.add_argument(
        "--compare",
        metavar="LINE",
        action="append",
        default=[],
        help="another schedule line with the same costs, for the table of step times and the figure; may be repeated",
    )
    parser.add_argument("--figure", metavar="FILE", help="draw the timelines: FILE.svg or FILE.png")
    parser.add_argument("--trace", metavar="FILE", help="write the timeline for ui.perfetto.dev: FILE.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    parser.add_argument("--programs", action="store_true", help="print also what every rank runs, messages included")
    parser.add_argument(
        "--placement",
        action="store_true",
        help="print also which ranks hold each layer, and parameters and bytes per rank; for a CONFIG.yaml",
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
    if args.figure is not None:
        check_suffix(args.figure)
    if args.placement and args.config is None:
        raise UsageError("--placement counts the parameters of a model, which only a CONFIG.yaml gives; name one")
    derive_line = _from_config(args) if args.config is not None else _from_line(args)
    cases = [_case(*derive_line(line)) for line in (None, *args.compare)]
    sizes = _sizes(args) if args.placement else []
    # Files first: when one cannot be written, nothing else has happened.
    _write(args, cases)
    plan, costs, timeline, unit = cases[0]
    if args.json:
        compared = {"compare": [_brief(case) for case in cases[1:]]} if args.compare else {}
        placed = {"placement": placement_data(plan, sizes)} if args.placement else {}
        print(json.dumps({**as_json(plan, costs, timeline), **compared, **placed}))
        return 0
    print(report(plan, costs, timeline, unit))
    if args.compare:
        print("\n" + "\n".join(_table(cases)))
    if args.placement:
        print("\n" + placement_table(plan, sizes))
    if args.programs:
        print("\n" + to_text(plan.programs), end="")
    return 0


def _case(plan: Plan, costs: Costs, unit: str) -> Case:
    validate(plan)
    return Case(plan, costs, simulate(plan, costs), unit)


def _write(args: argparse.Namespace, cases: list[Case]) -> None:
    """Write figure and trace, both or none."""
    files: dict[str, bytes] = {}
    if args.figure is not None:
        entries = [(str(case.plan.schedule), case.plan, case.costs, case.timeline) for case in cases]
        files[args.figure] = render(entries, args.figure, cases[0].unit)
    if args.trace is not None:
        if args.trace in files:
            raise UsageError(f"--figure and --trace name the same file {args.trace!r}; give two")
        plan, costs, timeline, unit = cases[0]
        files[args.trace] = to_bytes(trace(plan, costs, timeline, unit or "ms"))
    write_files(files)


def _table(cases: list[Case]) -> list[str]:
    """Lay out the step times of all lines, and the change against the first."""
    first = cases[0].timeline.step_time
    heads = ("step time", "change", "bubble %", f"schedule{f'   (times in {cases[0].unit})' if cases[0].unit else ''}")
    rows = [heads]
    for index, (plan, _, timeline, _) in enumerate(cases):
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


def as_json(plan: Plan, costs: Costs, timeline: Timeline) -> dict[str, Any]:
    """Return what `--json` prints; the keys are part of the interface."""
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
    }


Derive = Callable[[str | None], tuple[Plan, Costs, str]]
"""From another schedule line, or None for the one that was asked for, to plan, costs and unit."""


def _from_config(args: argparse.Namespace) -> Derive:
    """Derive plans of a training configuration; only this needs the training package."""
    given = [option_name(name) for name in _LINE_ONLY if getattr(args, name) is not None]
    if given:
        quote = "quote the schedule line and put --schedule before it" if re.search("[(>]", args.config) else ""
        raise UsageError(
            f"plan takes a CONFIG.yaml or a schedule line with its options, but got {args.config!r} together with "
            f"{', '.join(given)}; {quote or 'change values of a CONFIG.yaml with section.key=value'}"
        )
    from hyperparallel.training.plan_config import plan_from_config

    def derive_line(line: str | None) -> tuple[Plan, Costs, str]:
        # Quoted, since a schedule line may hold what means something in YAML.
        more = [] if line is None else [f"schedule={json.dumps(line)}"]
        plan, costs, unit = plan_from_config(args.config, [*args.overrides, *more])
        return plan, costs if args.message is None else dataclasses.replace(costs, alpha=args.message), unit

    return derive_line


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


def _from_line(args: argparse.Namespace) -> Derive:
    """Derive plans of schedule lines and part costs."""
    needed = {name: getattr(args, name) for name in ("schedule", "ranks", "micro_batches", "cost")}
    require("plan", EXAMPLE, **needed)

    def derive_line(line: str | None) -> tuple[Plan, Costs, str]:
        schedule = parse(args.schedule if line is None else line)
        check_size(args.ranks, args.micro_batches, max(region.count for region in schedule.regions))
        parts = _part_costs(args.cost)
        layers = None if args.layers is None else _layers(args.layers, parts)
        model = model_from_costs(schedule, parts, args.ranks, layers)
        plan = derive(schedule, model, args.ranks, args.micro_batches)
        return plan, costs_from_parts(plan, parts, args.message or 0.0), ""

    return derive_line


def _part_costs(text: str) -> dict[str, PartCost]:
    parts = parse_part_costs(text)
    for part, cost in parts.items():
        if max(cost) > MAX_TIME:
            raise UsageError(f"--cost: a time of {part!r} is above {MAX_TIME:g}; use a larger unit of time")
    return parts


def _layers(text: str, parts: dict[str, PartCost]) -> dict[str, int]:
    """Parse `vision=4,llm=18`."""
    layers: dict[str, int] = {}
    for entry in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z0-9_.]+)=([0-9]{1,9})\s*", entry, re.ASCII)
        if match is None or not 1 <= int(match.group(2)) <= _MAX_LAYERS:
            raise UsageError(
                f"--layers {text!r}: {entry!r} is not a layer count; expected part=N such as llm=18 with N from 1 to "
                f"{_MAX_LAYERS}, joined by commas"
            )
        part = match.group(1)
        if part in layers:
            raise UsageError(f"--layers {text!r}: part {part!r} is given twice")
        if part not in parts:
            raise UsageError(f"--layers {text!r}: part {part!r} has no --cost{did_you_mean(part, parts)}")
        layers[part] = int(match.group(2))
    return layers
