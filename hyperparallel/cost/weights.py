"""What every action costs: stage times from part costs, measured times, and alpha-beta messages."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hyperparallel.algebra import LayerSpec, ModelSpec, Plan, Schedule
from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, I, W
from hyperparallel.algebra.skeletons import Layout
from hyperparallel.errors import ScheduleError

LAYERS_PER_SLAB = 24
"""Layers that a part gets per slab when only its cost is known: fine enough to balance slabs by cost."""

MOST_SLABS = 4096
"""More slabs than this are a typing error, and would make millions of layers."""


class PartCost(NamedTuple):
    """Forward and backward time of a part for one micro-batch: a whole encode, or one rank's backbone slab."""

    forward: float
    backward: float


@dataclass(frozen=True)
class Costs:
    """Durations of actions.

    Args:
        compute: (stage, kind) -> time, or a list of times by micro-batch; I and W that are missing are half of B.
        alpha: time of a message of zero bytes.
        beta: time per byte.
        message_bytes: (stage, SEND_F or SEND_B) -> bytes, or a list by micro-batch; missing means 0.

    Example:
        >>> Costs({(0, "F"): 1.0, (0, "B"): [2.0, 3.0]}).duration(Action(0, "B", 1))
        3.0
    """

    compute: Mapping[tuple[int, str], float | Sequence[float]]
    alpha: float = 0.0
    beta: float = 0.0
    message_bytes: Mapping[tuple[int, str], float | Sequence[float]] = field(default_factory=dict)

    def duration(self, action: Action) -> float:
        """Time of a compute action, or of the message that a SEND starts."""
        key = (action.stage, action.kind)
        if action.kind in (SEND_F, SEND_B):
            return self.alpha + self.beta * _pick(self.message_bytes.get(key, 0.0), action.mb)
        if action.kind in (I, W) and key not in self.compute:
            return _pick(self.compute[action.stage, B], action.mb) / 2
        return _pick(self.compute[key], action.mb)


def _pick(value: float | Sequence[float], mb: int) -> float:
    return value[mb] if isinstance(value, Sequence) else value


def parse_part_costs(text: str) -> dict[str, PartCost]:
    """Parse `vision=TE/TG,llm=TF/TB`.

    Args:
        text: one `part=forward/backward` per part, times >= 0 in any unit; backward 0 means frozen.

    Raises:
        ScheduleError: says which entry is wrong and how it should look.

    Example:
        >>> parse_part_costs("vision=12/0,llm=4/8")["llm"]
        PartCost(forward=4.0, backward=8.0)
    """
    costs: dict[str, PartCost] = {}
    for entry in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z0-9_.]+)=(\d+\.?\d*)/(\d+\.?\d*)\s*", entry, re.ASCII)
        if match is None:
            raise ScheduleError(
                f"--cost {text!r}: {entry!r} is not a cost; expected part=FORWARD/BACKWARD such as llm=4/8, "
                "times >= 0, joined by commas"
            )
        if match.group(1) in costs:
            raise ScheduleError(f"--cost {text!r}: part {match.group(1)!r} is given twice")
        cost = PartCost(float(match.group(2)), float(match.group(3)))
        if math.isinf(sum(cost)):
            raise ScheduleError(f"--cost {text[:60]!r}...: a time of part {match.group(1)!r} is too large for a float")
        costs[match.group(1)] = cost
    return costs


def backbone(schedule: Schedule, parts: Sequence[str]) -> str:
    """Return the part whose cost is that of one rank's slab: `llm`, else the last part of the last Sharded region."""
    if "llm" in parts:
        return "llm"
    sharded = [region.parts for region in schedule.regions if region.layout is Layout.SHARDED and region.parts]
    return sharded[-1][-1] if sharded else parts[-1]


def model_from_costs(
    schedule: Schedule, costs: Mapping[str, PartCost], ranks: int, layers: Mapping[str, int] | None = None
) -> ModelSpec:
    """Make up a model of equal layers whose parts cost what was given.

    Args:
        schedule: names the parts; a schedule without names takes all parts of `costs`, in that order.
        costs: by part; backward 0 means frozen.
        ranks: P; the backbone's cost is that of one of its P slabs.
        layers: layer counts by part; by default `LAYERS_PER_SLAB` per slab, so cost-balanced cuts are close.

    Raises:
        ScheduleError: a part of the schedule has no cost, or it has more slabs than `MOST_SLABS`.

    Returns:
        The model, with costs per layer for `slabs=balanced`.
    """
    named = [part for region in schedule.regions for part in region.parts]
    parts = named or list(costs)
    _check_given(parts, costs, schedule)
    count = max((region.count for region in schedule.regions if region.layout is Layout.SHARDED), default=1)
    if ranks * count > MOST_SLABS:
        raise ScheduleError(
            f"{schedule} on {ranks} ranks makes {ranks * count} slabs; at most {MOST_SLABS} can be made up from costs: "
            "use fewer ranks or a smaller count"
        )
    specs: list[LayerSpec] = []
    for part in parts:
        slabs = ranks if part == backbone(schedule, parts) else 1
        number = (layers or {}).get(part, LAYERS_PER_SLAB * ranks * count)
        cost = costs[part]
        specs += [LayerSpec(part, cost.backward > 0, slabs * (cost.forward + cost.backward) / number)] * number
    return ModelSpec(tuple(specs))


def costs_from_parts(plan: Plan, parts: Mapping[str, PartCost], alpha: float = 0.0) -> Costs:
    """Spread part costs over the stages of a plan by their share of the part's layers.

    Args:
        plan: its model may be made up (`model_from_costs`) or real.
        parts: a whole encode's time, and for the backbone the time of one of P slabs.
        alpha: time of a message.

    Raises:
        ScheduleError: a part of the model has no cost.

    Returns:
        Costs of every stage; a slab with layers of several parts costs their sum.
    """
    layers = plan.model.layers
    names = plan.model.parts
    _check_given(names, parts, plan.schedule)
    share = {part: (plan.ranks if part == backbone(plan.schedule, names) else 1) for part in names}
    number = {part: sum(layer.part == part for layer in layers) for part in names}
    compute: dict[tuple[int, str], float] = {}
    for stage, (first, last) in enumerate(plan.placement.slabs):
        here = {part: sum(layer.part == part for layer in layers[first:last]) for part in names}
        for kind, field_ in ((F, "forward"), (B, "backward")):
            # Multiply before dividing: a whole part or slab then costs exactly what was given.
            compute[stage, kind] = sum(
                getattr(parts[part], field_) * (share[part] * here[part]) / number[part] for part in names if here[part]
            )
    return Costs(compute, alpha)


def _check_given(parts: Sequence[str], costs: Mapping[str, PartCost], schedule: Schedule) -> None:
    for part in parts:
        if part not in costs:
            hint = did_you_mean(part, costs)
            raise ScheduleError(f"part {part!r} of {schedule} has no cost; given: {', '.join(costs)}{hint}")
