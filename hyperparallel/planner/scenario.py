"""Scenarios: under which assumptions a published ratio of two step times appears. Never a reproduction.

Unit of time: a rank's slabs of the backbone take 1 for the forward and 2 for the backward of a micro-batch. Messages
and sums of gradients take no time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, NamedTuple

from pydantic import Field

from hyperparallel.algebra import ModelSpec, Plan, derive, parse
from hyperparallel.cost import Costs, PartCost, costs_from_parts, model_from_costs, simulate
from hyperparallel.cost.device import find_yaml, read_checked
from hyperparallel.cost.parts import mean_cost
from hyperparallel.errors import ConfigError
from hyperparallel.limits import MAX_TIME, MAX_WORKERS
from hyperparallel.planner.line import Settings, plan_line
from hyperparallel.schema import Items, Strict

FORWARD, BACKWARD = 1.0, 2.0

EVEN, BALANCED = "1f1b(vision+llm)", "1f1b(vision+llm, slabs=balanced)"
WARMUP = "transpose(vision) >> 1f1b(llm)"
FILL = "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
FILL_SPLIT = "transpose(vision, owner=balanced, place=fill, split=4) >> 1f1b(llm)"
LINES = (EVEN, BALANCED, WARMUP, FILL, FILL_SPLIT)

_MOST_SHARE, _HALVINGS = 0.95, 10
_MOST_TRIED = 16  # values of one list of a scan


Ranks = Annotated[int, Field(ge=2, le=64, description="P")]
MicroBatches = Annotated[int, Field(ge=1, le=256, description="M")]
Spread = Annotated[float, Field(ge=0, le=2, description="sigma of the log-normal images of a micro-batch; 0: uniform")]


class Published(Strict):
    """What is published."""

    before_s: float = Field(ge=1e-9, le=MAX_TIME, description="step time without transposing, seconds")
    after_s: float = Field(ge=1e-9, le=MAX_TIME, description="step time with it, seconds")


class Assumed(Strict):
    """What is not published."""

    ranks: Ranks
    micro_batches: MicroBatches
    encoder_share: float = Field(gt=0, lt=1, description="of the computing of a micro-batch")
    trained: bool = Field(False, description="whether the encoder has a backward")
    spread: Spread = 0.0


class Scan(Strict):
    """Other assumptions to try, for frozen and trained encoders."""

    ranks: Items[Ranks] = Field(min_length=1, max_length=_MOST_TRIED)
    micro_batches: Items[MicroBatches] = Field(min_length=1, max_length=_MOST_TRIED)
    spread: Items[Spread] = Field(min_length=1, max_length=_MOST_TRIED)


class Scenario(Strict):
    """A file of yaml/scenarios."""

    source: str
    devices: int = Field(ge=1, le=MAX_WORKERS)
    published: Published
    assumed: Assumed
    scan: Scan

    @property
    def ratio(self) -> float:
        """The published ratio."""
        return self.published.before_s / self.published.after_s


class Range(NamedTuple):
    """One line of a scan: the smallest encoder share found at which `WARMUP` has the published ratio; None: at none."""

    assumed: Assumed
    over_even: float | None
    over_balanced: float | None


def load_scenario(name: str | Path) -> Scenario:
    """Read a scenario by path, or by its bare name in yaml/scenarios.

    Raises:
        ConfigError: there is no such file, or it is not a scenario.

    Example:
        >>> round(load_scenario("paper_8").ratio, 2)
        2.71
    """
    path = find_yaml(name, "scenarios", "scenario")
    scenario = read_checked(path, Scenario)
    for ranks in (scenario.assumed.ranks, *scenario.scan.ranks):
        if scenario.devices % ranks:
            raise ConfigError(f"{path}: P = {ranks} does not divide {scenario.devices} devices; choose one that does")
    return scenario


def step_times(assumed: Assumed, lines: Sequence[str] = LINES) -> dict[str, float]:
    """Predict the step times of schedule lines.

    Example:
        >>> times = step_times(Assumed(ranks=2, micro_batches=4, encoder_share=0.5), [EVEN, WARMUP])
        >>> [round(time, 6) for time in times.values()]
        [37.0, 27.0]
    """
    return {line: _step_time(line, assumed) for line in lines}


def scan(scenario: Scenario) -> list[Range]:
    """Find for every combination the encoder share at which the published ratio appears."""
    found, tried = [], scenario.scan
    for ranks, mbs, trained, spread in product(tried.ranks, tried.micro_batches, (False, True), tried.spread):
        one = Assumed(ranks=ranks, micro_batches=mbs, trained=trained, spread=spread, encoder_share=0.5)
        shares = (_share(one, baseline, scenario.ratio) for baseline in (EVEN, BALANCED))
        found.append(Range(one, *shares))
    return found


def images(micro_batches: int, spread: float) -> list[float]:
    """Return the images of every micro-batch over their mean: quantiles of a log-normal, shuffled by a fixed seed."""
    normal = NormalDist(sigma=spread) if spread else None
    at = [(index + 0.5) / micro_batches for index in range(micro_batches)]
    raw = [1.0 if normal is None else 2.718281828459045 ** normal.inv_cdf(one) for one in at]
    random.Random(0).shuffle(raw)
    return [one * micro_batches / sum(raw) for one in raw]


def _share(assumed: Assumed, baseline: str, ratio: float) -> float | None:
    """Bisect for the smallest share at which the baseline takes `ratio` times as long as `WARMUP`."""

    def reached(share: float) -> bool:
        times = step_times(assumed.model_copy(update={"encoder_share": share}), (baseline, WARMUP))
        return times[baseline] >= ratio * times[WARMUP]

    # The ratio need not grow all the way: the first of some shares that reaches it is where to look.
    coarse = [0.0, *(_MOST_SHARE * step / 8 for step in range(1, 9))]
    high = next((share for share in coarse[1:] if reached(share)), None)
    if high is None:
        return None
    low = coarse[coarse.index(high) - 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _step_time(line: str, assumed: Assumed) -> float:
    parts, size = _parts(assumed), (assumed.ranks, assumed.micro_batches)

    def costs(plan: Plan) -> Costs:
        return costs_from_parts(plan, parts)

    if line in (EVEN, WARMUP):  # neither slabs nor order depend on the costs
        plan = _derive(line, assumed.trained, *size)
    else:
        plan = plan_line(line, _model(line, parts, assumed.ranks), *size, costs, Settings(engine="list")).plan
    return simulate(plan, costs(plan)).step_time


@cache
def _derive(line: str, trained: bool, ranks: int, micro_batches: int) -> Plan:
    parts = {"vision": PartCost(1.0, 2.0 * trained), "llm": PartCost(FORWARD, BACKWARD)}
    return derive(line, _model(line, parts, ranks), ranks, micro_batches)


def _model(line: str, parts: Mapping[str, PartCost], ranks: int) -> ModelSpec:
    return model_from_costs(parse(line), dict(parts), ranks)


def _parts(assumed: Assumed) -> dict[str, PartCost]:
    """Price the encoder so that it has its share of the computing."""
    backbone = assumed.ranks * (FORWARD + BACKWARD)
    encoder = backbone * assumed.encoder_share / (1 - assumed.encoder_share)
    forward = encoder / 3 if assumed.trained else encoder
    each = [PartCost(forward * n, (encoder - forward) * n) for n in images(assumed.micro_batches, assumed.spread)]
    return {"vision": mean_cost(each) if assumed.spread else each[0], "llm": PartCost(FORWARD, BACKWARD)}
