"""What `hyperparallel plan` shows: a schedule line, or that of a CONFIG.yaml, with its plan, costs and timeline."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hyperparallel.algebra import Plan, parse
from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.commands.arguments import UsageError, check_size, option_name, require
from hyperparallel.cost import Costs, PartCost, Timeline, costs_from_parts, model_from_costs, parse_part_costs, simulate
from hyperparallel.limits import MAX_LAYERS, MAX_TIME
from hyperparallel.planner import Certificate, Planned, Settings, plan_line
from hyperparallel.planner.limits import parse_limit

EXAMPLE = (
    'hyperparallel plan --schedule "transpose(vision) >> 1f1b(llm)" --ranks 4 --micro-batches 8 '
    "--cost vision=12/0,llm=4/8"
)
_LINE_ONLY = ("schedule", "ranks", "micro_batches", "cost", "layers")


class Case(NamedTuple):
    """A schedule line with all that follows from it.

    Args:
        plan: valid.
        costs: of its actions.
        timeline: of the plan under these costs.
        unit: of times; empty when the costs have none.
        certificate: of a plan that the planner made.
    """

    plan: Plan
    costs: Costs
    timeline: Timeline
    unit: str
    certificate: Certificate | None = None


def make_case(planned: Planned, costs: Costs, unit: str) -> Case:
    """Play a plan in time."""
    return Case(planned.plan, costs, simulate(planned.plan, costs), unit, planned.certificate)


Derive = Callable[[str | None], Case]
"""From another schedule line, or None for the one that was asked for, to its case."""


def from_config(args: argparse.Namespace) -> Derive:
    """Derive plans of a training configuration; only this needs the training package."""
    given = [option_name(name) for name in _LINE_ONLY if getattr(args, name) is not None]
    if given:
        quote = "quote the schedule line and put --schedule before it" if re.search("[(>]", args.config) else ""
        raise UsageError(
            f"plan takes a CONFIG.yaml or a schedule line with its options, but got {args.config!r} together with "
            f"{', '.join(given)}; {quote or 'change values of a CONFIG.yaml with section.key=value'}"
        )
    from hyperparallel.training.plan_config import plan_from_config

    def derive_line(line: str | None) -> Case:
        # Quoted, since a schedule line may hold what means something in YAML.
        more = [] if line is None else [f"schedule={json.dumps(line)}"]
        planned, costs = plan_from_config(args.config, [*args.overrides, *more], options_of(args))
        costs = costs if args.message is None else dataclasses.replace(costs, alpha=args.message)
        return make_case(planned, costs, "ms")

    return derive_line


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Collect the planner's options that were given."""
    given = {"time_limit_s": args.time_limit, "work_limit": args.work_limit, "engine": args.engine}
    if args.memory_limit is not None:
        limit = parse_limit(args.memory_limit)
        if limit.encodes is None:
            raise UsageError(
                f"--memory-limit {args.memory_limit!r}: bytes are known for a CONFIG.yaml only, where they are "
                "planner.memory_limit; give a number of encodes, such as '6 encodes'"
            )
        given["live_limit"] = limit.encodes
    if args.time_limit is not None and args.work_limit is None:
        given["work_limit"] = _NO_LIMIT
    return {name: None if value is _NO_LIMIT else value for name, value in given.items() if value is not None}


_NO_LIMIT = object()
"""Stands for a limit that is turned off, where None means that it was not given."""


def from_line(args: argparse.Namespace) -> Derive:
    """Derive plans of schedule lines and part costs."""
    needed = {name: getattr(args, name) for name in ("schedule", "ranks", "micro_batches", "cost")}
    require("plan", EXAMPLE, **needed)

    def derive_line(line: str | None) -> Case:
        schedule = parse(args.schedule if line is None else line)
        check_size(args.ranks, args.micro_batches, max(region.count for region in schedule.regions))
        parts = _part_costs(args.cost)
        layers = None if args.layers is None else _layers(args.layers, parts)
        model = model_from_costs(schedule, parts, args.ranks, layers)
        planned = plan_line(
            schedule,
            model,
            args.ranks,
            args.micro_batches,
            lambda plan: costs_from_parts(plan, parts, args.message or 0.0),
            Settings(**options_of(args)),
        )
        return make_case(planned, costs_from_parts(planned.plan, parts, args.message or 0.0), "")

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
        if match is None or not 1 <= int(match.group(2)) <= MAX_LAYERS:
            raise UsageError(
                f"--layers {text!r}: {entry!r} is not a layer count; expected part=N such as llm=18 with N from 1 to "
                f"{MAX_LAYERS}, joined by commas"
            )
        part = match.group(1)
        if part in layers:
            raise UsageError(f"--layers {text!r}: part {part!r} is given twice")
        if part not in parts:
            raise UsageError(f"--layers {text!r}: part {part!r} has no --cost{did_you_mean(part, parts)}")
        layers[part] = int(match.group(2))
    return layers
