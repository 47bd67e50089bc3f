"""Costs of parts: a whole encode's times and those of one backbone slab, from the command line to stages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperparallel.algebra import LayerSpec, ModelSpec, Plan, Schedule
from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.algebra.program import B, F, I, W
from hyperparallel.algebra.skeletons import Layout
from hyperparallel.cost.weights import Costs
from hyperparallel.errors import JsonError, ScheduleError
from hyperparallel.io import parse_json
from hyperparallel.json_file import read_text
from hyperparallel.limits import MAX_RANKS, MAX_TIME

LAYERS_PER_SLAB = 24
"""Layers that a part gets per slab when only its cost is known: fine enough to balance slabs by cost."""


@dataclass(frozen=True)
class PartCost:
    """Times of a part for one micro-batch: of a whole encode, or of one rank's backbone slab.

    Args:
        forward: F, time >= 0 in any one unit.
        backward: B, a whole backward.
        input: I, the part of a backward that makes the input's gradient; None means half of `backward`.
        weight: W, the part that makes the weights' gradients; None means half of `backward`. 0 means frozen.
        each: the costs of every micro-batch where they differ; all else is then their mean.

    Iterating gives the times that were given.

    Example:
        >>> PartCost(4, 8).split, list(PartCost(4, 9, 5, 4))
        ((4.0, 4.0), [4, 9, 5, 4])
    """

    forward: float
    backward: float
    input: float | None = None
    weight: float | None = None
    each: tuple[PartCost, ...] = ()

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


_TIME = r"(\d+\.?\d*)"
_LISTED = re.compile(r"\s*([A-Za-z0-9_.]+)=@(.+?)\s*", re.ASCII)
_ENTRY = re.compile(rf"\s*([A-Za-z0-9_.]+)={_TIME}/{_TIME}(?:/{_TIME})?\s*", re.ASCII)


def parse_part_costs(text: str) -> dict[str, PartCost]:
    """Parse `vision=TE/TG,llm=TF/TB`, or `llm=TF/TI/TW` with the backward in its two parts.

    Args:
        text: one `part=forward/backward` or `part=forward/input/weight` per part, times >= 0 in any one unit. A
            whole backward is input + weight; of a backward given as one figure each is half. A part is frozen when
            its backward, or its weight part, is 0. `vision=@FILE` reads a JSON list of [forward, backward], one for
            each micro-batch.

    Raises:
        ScheduleError: says which entry is wrong and how it should look.

    Example:
        >>> list(parse_part_costs("vision=12/0,llm=4/5/3")["llm"])
        [4.0, 8.0, 5.0, 3.0]
    """
    costs: dict[str, PartCost] = {}
    for entry in text.split(","):
        match, listed = _ENTRY.fullmatch(entry), _LISTED.fullmatch(entry)
        if match is None and listed is None:
            raise ScheduleError(
                f"--cost {text!r}: {entry!r} is not a cost; expected part=FORWARD/BACKWARD such as llm=4/8, "
                "part=FORWARD/INPUT/WEIGHT such as llm=4/4/4, or part=@FILE, times >= 0, joined by commas"
            )
        part = (match or listed).group(1)
        if part in costs:
            raise ScheduleError(f"--cost {text!r}: part {part!r} is given twice")
        costs[part] = _read_each(part, listed.group(2)) if listed else _one(part, match.groups()[1:], text)
    return costs


def _one(part: str, texts: Sequence[str | None], text: str) -> PartCost:
    """Make the cost of `4/8` or `4/4/4`."""
    forward, *backward = [float(time) for time in texts if time is not None]
    cost = PartCost(forward, sum(backward), *(backward if len(backward) == 2 else []))
    if math.isinf(sum(cost)):
        raise ScheduleError(f"--cost {text[:60]!r}...: a time of part {part!r} is too large for a float")
    return cost


def _read_each(part: str, path: str) -> PartCost:
    """Read the costs of every micro-batch from a JSON list of [forward, backward]."""
    try:
        rows = parse_json(read_text(Path(path)))
    except OSError as error:
        raise ScheduleError(f"--cost {part}=@{path}: cannot be read ({error.strerror}); give a JSON file") from None
    except JsonError as error:
        raise ScheduleError(f"--cost {part}=@{path}: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise ScheduleError(f"--cost {part}=@{path}: expected a list of [forward, backward], one for each micro-batch")
    for number, row in enumerate(rows):
        numbers = isinstance(row, list) and len(row) == 2 and not any(isinstance(time, bool) for time in row)
        if not numbers or not all(isinstance(time, int | float) and 0 <= time <= MAX_TIME for time in row):
            raise ScheduleError(
                f"--cost {part}=@{path}: entry {number} is {json.dumps(row)[:60]}; expected [forward, backward], two "
                f"times from 0 to {MAX_TIME:g}"
            )
    return mean_cost([PartCost(*map(float, row)) for row in rows])


def mean_cost(each: Sequence[PartCost]) -> PartCost:
    """Join the costs of micro-batches that differ.

    Example:
        >>> mean_cost([PartCost(1, 0), PartCost(3, 4)]).forward
        2.0
    """
    forward, backward = (sum(times) / len(each) for times in zip(*((c.forward, c.backward) for c in each), strict=True))
    return PartCost(forward, backward, each=tuple(each))


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
        ScheduleError: a part of the schedule has no cost, or it has more slabs than `MAX_RANKS`.

    Returns:
        The model, with costs per layer for `slabs=balanced`.
    """
    named = [part for region in schedule.regions for part in region.parts]
    parts = named or list(costs)
    _check_given(parts, costs, schedule)
    count = max((region.count for region in schedule.regions if region.layout is Layout.SHARDED), default=1)
    if ranks * count > MAX_RANKS:
        raise ScheduleError(
            f"{schedule} on {ranks} ranks makes {ranks * count} slabs; at most {MAX_RANKS} can be made up from costs: "
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
        ScheduleError: a part of the model has no cost, or those of its micro-batches are not M.

    Returns:
        F, B, I and W of every stage; a slab with layers of several parts costs their sum. Pieces have equal shares.
    """
    _check_given(plan.model.parts, parts, plan.schedule)
    for name, cost in parts.items():
        if cost.each and len(cost.each) != plan.micro_batches:
            raise ScheduleError(
                f"the costs of part {name!r} are listed for {len(cost.each)} micro-batches; M is {plan.micro_batches}: "
                "give as many"
            )
    split = plan.placement.split
    shares = [(1 / split,) * split] * plan.micro_batches if split > 1 else ()
    if not any(parts[name].each for name in plan.model.parts):
        return Costs(_stage_times(plan, parts), alpha, shares=shares)
    by_mb = [
        _stage_times(plan, {name: cost.each[mb] if cost.each else cost for name, cost in parts.items()})
        for mb in range(plan.micro_batches)
    ]
    return Costs({key: [times[key] for times in by_mb] for key in by_mb[0]}, alpha, shares=shares)


def _stage_times(plan: Plan, parts: Mapping[str, PartCost]) -> dict[tuple[int, str], float]:
    """Spread the costs of one micro-batch."""
    names = plan.model.parts
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
    return compute


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
