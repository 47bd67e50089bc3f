"""What every action costs: stage times from part costs, measured times, and alpha-beta messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hyperparallel.algebra import LayerSpec, ModelSpec, Plan, Schedule
from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, I, W
from hyperparallel.algebra.skeletons import Layout
from hyperparallel.errors import ScheduleError

LAYERS_PER_SLAB = 24
"""Layers that a part gets per slab when only its cost is known: fine enough to balance slabs by cost."""

MOST_SLABS = 4096
"""More slabs than this are a typing error, and would make millions of layers."""


@dataclass(frozen=True)
class PartCost:
    """Times of a part for one micro-batch: of a whole encode, or of one rank's backbone slab.

    Args:
        forward: F, time >= 0 in any one unit.
        backward: B, a whole backward.
        input: I, the part of a backward that makes the input's gradient; None means half of `backward`.
        weight: W, the part that makes the weights' gradients; None means half of `backward`. 0 means frozen.

    Iterating gives the times that were given.

    Example:
        >>> PartCost(4, 8).split, list(PartCost(4, 9, 5, 4))
        ((4.0, 4.0), [4, 9, 5, 4])
    """

    forward: float
    backward: float
    input: float | None = None
    weight: float | None = None

    def __iter__(self) -> Iterator[float]:
        times = (self.forward, self.backward, self.input, self.weight)
        return iter([time for time in times if time is not None])

    @property
    def split(self) -> tuple[float, float]:
        """I and W."""
        half = self.backward / 2
        return (half if self.input is None else self.input, half if self.weight is None else self.weight)

    @property
    def trains(self) -> bool:
        """False when frozen: its weights' gradients cost nothing."""
        return self.split[1] > 0


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

    def times(self, stage: int, kind: str, micro_batches: int) -> Sequence[float]:
        """`duration` of one stage and kind by micro-batch: for whoever walks whole programs."""
        key = (stage, kind)
        if kind in (SEND_F, SEND_B):
            sizes = self.message_bytes.get(key, 0.0)
            if isinstance(sizes, Sequence):
                return [self.alpha + self.beta * size for size in sizes]
            return [self.alpha + self.beta * sizes] * micro_batches
        halved = kind in (I, W) and key not in self.compute
        times = self.compute[stage, B] if halved else self.compute[key]
        if isinstance(times, Sequence):
            return [time / 2 for time in times] if halved else times
        return [times / 2 if halved else times] * micro_batches


def _pick(value: float | Sequence[float], mb: int) -> float:
    return value[mb] if isinstance(value, Sequence) else value


_TIME = r"(\d+\.?\d*)"
_ENTRY = re.compile(rf"\s*([A-Za-z0-9_.]+)={_TIME}/{_TIME}(?:/{_TIME})?\s*", re.ASCII)


def parse_part_costs(text: str) -> dict[str, PartCost]:
    """Parse `vision=TE/TG,llm=TF/TB`, or `llm=TF/TI/TW` with the backward in its two parts.

    Args:
        text: one `part=forward/backward` or `part=forward/input/weight` per part, times >= 0 in any one unit. A
            whole backward is input + weight; of a backward given as one figure each is half. A part is frozen when
            its backward, or its weight part, is 0.

    Raises:
        ScheduleError: says which entry is wrong and how it should look.

    Example:
        >>> parse_part_costs("vision=12/0,llm=4/5/3")["llm"]
        PartCost(forward=4.0, backward=8.0, input=5.0, weight=3.0)
    """
    costs: dict[str, PartCost] = {}
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ScheduleError(
                f"--cost {text!r}: {entry!r} is not a cost; expected part=FORWARD/BACKWARD such as llm=4/8, or "
                "part=FORWARD/INPUT/WEIGHT such as llm=4/4/4, times >= 0, joined by commas"
            )
        part, forward, *backward = match.groups()
        if part in costs:
            raise ScheduleError(f"--cost {text!r}: part {part!r} is given twice")
        parts = [float(time) for time in backward if time is not None]
        cost = PartCost(float(forward), sum(parts), *(parts if len(parts) == 2 else []))
        if math.isinf(sum(cost)):
            raise ScheduleError(f"--cost {text[:60]!r}...: a time of part {part!r} is too large for a float")
        costs[part] = cost
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
        costs: by part; a part whose weight gradients cost 0 is frozen.
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
        specs += [LayerSpec(part, cost.trains, slabs * (cost.forward + cost.backward) / number)] * number
    return ModelSpec(tuple(specs))


def costs_from_parts(plan: Plan, parts: Mapping[str, PartCost], alpha: float = 0.0) -> Costs:
    """Spread part costs over the stages of a plan by their share of the part's layers.

    A frozen layer with something trainable before it only passes the gradient on: its B costs I, its W nothing. One
    with nothing trainable before it costs no backward at all.

    Args:
        plan: its model may be made up (`model_from_costs`) or real.
        parts: a whole encode's time, and for the backbone the time of one of P slabs.
        alpha: time of a message.

    Raises:
        ScheduleError: a part of the model has no cost.

    Returns:
        F, B, I and W of every stage; a slab with layers of several parts costs their sum.
    """
    names = plan.model.parts
    _check_given(names, parts, plan.schedule)
    trained, passing = _counts(plan.model)
    compute = {(stage, kind): 0.0 for stage in range(plan.placement.stages) for kind in (F, B, I, W)}
    for part in names:
        (begin, end), cost = plan.model.span(part), parts[part]
        slabs = plan.ranks if part == backbone(plan.schedule, names) else 1

        def share(time: float, layers: int, slabs: int = slabs, number: int = end - begin) -> float:
            # Multiply before dividing: a whole part or slab then costs exactly what was given.
            return time * (slabs * layers) / number

        for stage, (first, last) in enumerate(plan.placement.slabs):
            first, last = max(first, begin), min(last, end)
            if first >= last:
                continue
            trains, passes = trained[last] - trained[first], passing[last] - passing[first]
            compute[stage, F] += share(cost.forward, last - first)
            compute[stage, B] += share(cost.backward, trains) + share(cost.split[0], passes)
            compute[stage, I] += share(cost.split[0], trains + passes)
            compute[stage, W] += share(cost.split[1], trains)
    return Costs(compute, alpha)


def _counts(model: ModelSpec) -> tuple[list[int], list[int]]:
    """Count, before each layer, those that are trained and those that are frozen behind a trained one."""
    trained, passing = [0], [0]
    for layer in model.layers:
        passing.append(passing[-1] + (not layer.trainable and trained[-1] > 0))
        trained.append(trained[-1] + layer.trainable)
    return trained, passing


def _check_given(parts: Sequence[str], costs: Mapping[str, PartCost], schedule: Schedule) -> None:
    for part in parts:
        if part not in costs:
            hint = did_you_mean(part, costs)
            raise ScheduleError(f"part {part!r} of {schedule} has no cost; given: {', '.join(costs)}{hint}")
