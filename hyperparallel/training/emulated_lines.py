"""What `bench --emulate` runs: schedule lines with planned durations, as a file that the ranks read.

The starter plans and predicts, the ranks only follow programs: a plan that a search found need not be found again by
every rank. No MindSpore here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hyperparallel.algebra import Plan, parse, to_text
from hyperparallel.algebra.model import cut_evenly
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, F, I, W
from hyperparallel.cost import Costs, PartCost, costs_from_parts, model_from_costs, simulate
from hyperparallel.errors import ConfigError
from hyperparallel.planner import Settings, plan_line

JOB, PROGRESS, RESULT = "emulation.json", "progress.jsonl", "emulated.json"
"""Files in the run folder: for the ranks, from rank 0 while it runs, and from rank 0 at the end."""


@dataclass(frozen=True)
class Line:
    """A planned schedule line.

    Args:
        plan: who does what, in which order.
        costs: of its actions, in seconds, and of its messages in bytes; alpha and beta are not known yet.
    """

    plan: Plan
    costs: Costs

    def predicted(self, alpha: float, beta: float) -> float:
        """Step time in seconds with these message costs."""
        return simulate(self.plan, replace(self.costs, alpha=alpha, beta=beta)).step_time


@dataclass(frozen=True)
class Setting:
    """What all lines of a job have in common.

    Args:
        parts: costs by part, in the model's order, the backbone last: a whole encode, and one of P slabs.
        ranks: P.
        micro_batches: M.
        unit: seconds per unit of the costs.
        message_bytes: size of every message; pieces have their shares of it.
        planner: limits of the planner.
    """

    parts: Mapping[str, PartCost]
    ranks: int
    micro_batches: int
    unit: float
    message_bytes: int
    planner: Settings = Settings()

    def costs(self, plan: Plan) -> Costs:
        """Price a plan in seconds and bytes."""
        costs = costs_from_parts(plan, self.parts)
        sends = [(stage, send) for stage in range(plan.placement.stages) for send in (SEND_F, SEND_B)]
        sizes = dict.fromkeys(sends, float(self.message_bytes))
        return replace(costs, compute=_scaled(costs.compute, self.unit), message_bytes=sizes)


def plan_for(text: str, setting: Setting) -> Line:
    """Plan a schedule line.

    Args:
        text: the line.
        setting: what it is planned for.

    Raises:
        ConfigError: the line splits backwards, which the runner does not do as planned.
        HyperParallelError: the line does not fit.
    """
    schedule = parse(text)
    model = model_from_costs(schedule, setting.parts, setting.ranks)
    planned = plan_line(schedule, model, setting.ranks, setting.micro_batches, setting.costs, setting.planner)
    if any(action.kind in (I, W) for program in planned.plan.compute for action in program):
        raise ConfigError(
            f"{planned.plan.schedule} splits backwards in I and W, but the stepwise runner runs a backward in one "
            "piece; emulate a line that leaves them whole"
        )
    return Line(planned.plan, setting.costs(planned.plan))


def _scaled(compute: Mapping, unit: float) -> dict:
    return {
        key: [time * unit for time in times] if isinstance(times, Sequence) else times * unit
        for key, times in compute.items()
    }


def default_lines(parts: Mapping[str, PartCost], ranks: int) -> list[str]:
    """Return the lines that are compared when none is given.

    Args:
        parts: costs by part, in the model's order, the backbone last.
        ranks: P.

    Returns:
        The encoder inline, inline with slabs balanced by cost, on a rank of its own, and transposed: before the
        backbone, in its bubbles, and there in four pieces. One part alone is just cut evenly; one rank leaves no rank
        for the encoder alone.
    """
    names = "+".join(parts)
    even = f"1f1b({names})"
    if len(parts) == 1:
        return [even]
    lines = [even, f"1f1b({names}, slabs=balanced)"]
    *before, backbone = parts
    encoder = "+".join(before)
    if ranks > 1:
        first, last = model_from_costs(parse(even), parts, ranks).span(backbone)
        rest = [end - begin for begin, end in cut_evenly((first, last), ranks - 1)]
        lines.append(f"1f1b({names}, slabs={[first, *rest]})")
    options = ("", ", owner=balanced, place=fill", ", owner=balanced, place=fill, split=4")
    return [*lines, *(f"transpose({encoder}{option}) >> 1f1b({backbone})" for option in options)]


def job_of(lines: Sequence[Line], steps: int) -> dict[str, Any]:
    """Return what the ranks need to know: programs, seconds by action, and bytes that every F hands on.

    Args:
        lines: planned for the same P; M may differ.
        steps: measured steps of every line.
    """
    return {
        "ranks": lines[0].plan.ranks,
        "steps": steps,
        "lines": [_entry(line) for line in lines],
    }


def _entry(line: Line) -> dict[str, Any]:
    in_bytes = replace(line.costs, alpha=0.0, beta=1.0)
    actions = [action for program in line.plan.programs for action in program]
    return {
        "schedule": str(line.plan.schedule),
        "micro_batches": line.plan.micro_batches,
        "programs": to_text(line.plan.programs),
        "seconds": {str(action): line.costs.duration(action) for action in actions if action.is_compute},
        "bytes": {
            str(action): round(in_bytes.duration(Action(action.stage, SEND_F, action.mb)))
            for action in actions
            if action.kind == F
        },
    }
