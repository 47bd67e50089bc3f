"""What a search compares: a line on a layout, planned, timed and weighed. Devices are known only by callables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hyperparallel.algebra import ModelSpec, Plan, derive
from hyperparallel.algebra.program import B, F, I, W
from hyperparallel.cost import Costs, Timeline, simulate
from hyperparallel.cost.memory_bytes import Peak
from hyperparallel.cost.reduces import reduce_times
from hyperparallel.planner.candidates import Base, Layout
from hyperparallel.planner.line import Certificate, Settings, plan_line


@dataclass(frozen=True)
class Job:
    """What is to be laid out; one unit of time throughout.

    Args:
        parts: of the model, from input to loss.
        encoder: those of them that a text-only model lacks.
        layers: layers of each part.
        spec: the model for a layout.
        costs: prices a plan for the mean micro-batch; plans are made for these.
        peaks: the most of every rank in memory, None where unknown.
        gradients: bytes of the gradient of every layer, as if trained.
        link: alpha and beta of the reduces.
        steps: prices a plan for some steps of the data, whose mean ranks it; default: `costs`.
        transpose: whether anything may be transposed.
    """

    parts: Sequence[str]
    encoder: Collection[str]
    layers: Sequence[int]
    spec: Callable[[Layout], ModelSpec]
    costs: Callable[[Plan, Layout], Costs]
    peaks: Callable[[Plan, Layout], Sequence[Peak] | None]
    gradients: Sequence[float]
    link: tuple[float, float] = (0.0, 0.0)
    steps: Callable[[Plan, Layout], Sequence[Costs]] | None = None
    transpose: bool = True

    def all_steps(self, plan: Plan, layout: Layout) -> Sequence[Costs]:
        """Price a plan for the steps that rank it."""
        return [self.costs(plan, layout)] if self.steps is None else self.steps(plan, layout)

    def reduce(self, plan: Plan, layout: Layout) -> float:
        """Return the time of the sums of gradients, on the rank that takes longest."""
        return max(reduce_times(plan, self.gradients, layout.replicas, *self.link))


@dataclass(frozen=True)
class Row:
    """A line on a layout, planned and timed.

    Args:
        layout: P, D, T, M.
        base: what the line comes from.
        encoding: options of `transpose`.
        plan: validated.
        costs: that it was planned for.
        timeline: under these costs.
        step_time: mean over the steps of the job, `reduce` included.
        reduce: of it, the sums of gradients over replicas, after the last backward.
        peak: of the fullest rank in memory, None where unknown.
        live_limit: most live encodes that the plan was made for, to stay within the memory limit.
        certificate: of a plan that the planner made.
    """

    layout: Layout
    base: Base
    encoding: str
    plan: Plan
    costs: Costs
    timeline: Timeline
    step_time: float
    reduce: float
    peak: Peak | None = None
    live_limit: int | None = None
    certificate: Certificate | None = None

    @property
    def line(self) -> str:
        """The schedule line."""
        return self.base.line(self.encoding)

    @property
    def sizes(self) -> str:
        """The layout in words."""
        return self.layout.text

    @property
    def bytes(self) -> int | None:
        """Bytes of the fullest rank."""
        return None if self.peak is None else self.peak.bytes

    @property
    def bubble(self) -> float:
        """Share of the ranks' time in the pipeline in which they wait."""
        whole = self.plan.ranks * self.timeline.step_time
        return sum(self.timeline.bubble) / whole if whole else 0.0


def make_row(job: Job, layout: Layout, base: Base, encoding: str, settings: Settings) -> Row:
    """Plan a line of a base, and time and weigh it.

    Raises:
        ScheduleError: the line does not fit the model, or no plan keeps the limit on live encodes.
    """
    line, size = base.line(encoding), (layout.ranks, layout.micro_batches)
    planned = plan_line(line, job.spec(layout), *size, lambda plan: job.costs(plan, layout), settings)
    plan, costs = planned.plan, job.costs(planned.plan, layout)
    times = [simulate(plan, one).step_time for one in job.all_steps(plan, layout)]
    peaks, reduce = job.peaks(plan, layout), job.reduce(plan, layout)
    return Row(
        layout,
        base,
        encoding,
        plan,
        costs,
        simulate(plan, costs),
        sum(times) / len(times) + reduce,
        reduce,
        None if peaks is None else fullest(peaks),
        settings.live_limit,
        planned.certificate,
    )


def fullest(peaks: Sequence[Peak]) -> Peak:
    """Pick the peak of the rank that holds most."""
    return max(peaks, key=lambda peak: peak.bytes)


def text_only(job: Job, layout: Layout, base: Base) -> Row:
    """Time the backbone of a base alone: the same line with an encoder that takes no time.

    The encoder is put on rank 0, where its features are needed, so that it sends nothing either.

    Raises:
        ScheduleError: the backbone alone has too few layers for the line.
    """
    encoder = [part for part in job.parts if part in job.encoder]
    rest = [part for part in job.parts if part not in job.encoder]
    alone = base._replace(transposed="+".join(encoder), parts="+".join(rest))
    encoding = f"owner=[{','.join('0' * layout.micro_batches)}]" if encoder else ""
    plan = derive(alone.line(encoding), job.spec(layout), layout.ranks, layout.micro_batches)
    free = {(stage, kind): 0.0 for stage in range(plan.ranks) for kind in (F, B, I, W)} if encoder else {}
    costs = _with(job.costs(plan, layout), free)
    times = [simulate(plan, _with(one, free)).step_time for one in job.all_steps(plan, layout)]
    first = plan.placement.slabs[plan.ranks if encoder else 0][0]
    sizes = [size if layer >= first else 0.0 for layer, size in enumerate(job.gradients)]
    reduce = max(reduce_times(plan, sizes, layout.replicas, *job.link))
    step_time = sum(times) / len(times) + reduce
    return Row(layout, alone, encoding, plan, costs, simulate(plan, costs), step_time, reduce)


def _with(costs: Costs, instead: Mapping[tuple[int, str], float]) -> Costs:
    return replace(costs, compute={**costs.compute, **instead})
