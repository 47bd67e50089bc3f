"""derive: (cut, schedule, model) -> placement, collectives, order. The paper's definitions on one screen.

Source: arXiv 2607.03229; design, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hyperparallel.algebra.expression import Schedule, normal_form, parse
from hyperparallel.algebra.lower import Programs, lower
from hyperparallel.algebra.model import ModelSpec
from hyperparallel.algebra.placement import Placement, place
from hyperparallel.algebra.program import Action
from hyperparallel.algebra.regions import Encodes, Owner, Region, fill_parts, resolve
from hyperparallel.algebra.seams import Seam, seam
from hyperparallel.algebra.validate import validate_programs
from hyperparallel.algebra.weave import weave
from hyperparallel.errors import ScheduleError


@dataclass(frozen=True)
class Plan:
    """Everything a schedule line means for a model, P ranks and M micro-batches.

    Args:
        schedule: in normal form, every region with its parts.
        model: the layers it was derived for.
        regions: the cut, in input-to-loss order.
        placement: stages, paths, owners and gates.
        seams: the collectives between region j and j + 1.
        compute: F, B, I, W of every rank, in order, without messages.
        ends: when a planner expects each of them to end; None where the order came without times.
    """

    schedule: Schedule
    model: ModelSpec
    regions: tuple[Region, ...]
    placement: Placement
    seams: tuple[Seam, ...]
    compute: tuple[tuple[Action, ...], ...]
    ends: tuple[tuple[float, ...], ...] | None = None

    @cached_property
    def programs(self) -> Programs:
        """What every rank does, with SEND and RECV (see `lower.py`)."""
        return lower(self.compute, self.placement, self.ends)

    @property
    def ranks(self) -> int:
        """P."""
        return self.placement.ranks

    @property
    def micro_batches(self) -> int:
        """M."""
        return self.placement.micro_batches

    @property
    def owner(self) -> tuple[Owner, ...] | None:
        """Owner rank by micro-batch of the first Replicated region (a rank for each piece); None without one."""
        return next((region.owner for region in self.regions if region.owner is not None), None)


def derive(
    schedule: Schedule | str, model: ModelSpec, ranks: int, micro_batches: int, encodes: Encodes | None = None
) -> Plan:
    """Derive placement, collectives and order from a schedule line.

    Args:
        schedule: a parsed line or its text.
        model: the layers, in parts; only the layer counts, whether each is trainable, and for
            `slabs=balanced` their costs are read.
        ranks: P >= 1, ranks of one pipeline.
        micro_batches: M >= 1.
        encodes: what a planner decided, for a line with `owner=balanced` or `place=fill`.

    Raises:
        ScheduleSyntaxError: the text does not parse.
        ScheduleError: the schedule does not fit the model, P or M.

    Returns:
        The plan. `validate` checks it.

    Example:
        >>> plan = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 2}), 2, 2)
        >>> " ".join(map(str, plan.compute[0]))
        '0F0 2F0 2F1 2B0 2B1 0B0'
    """
    if ranks < 1 or micro_batches < 1:
        raise ScheduleError(f"ranks={ranks}, micro_batches={micro_batches}; both must be at least 1")
    schedule = parse(schedule) if isinstance(schedule, str) else schedule
    schedule = normal_form(fill_parts(schedule, model))
    regions = resolve(schedule, model, ranks, micro_batches, encodes)
    placement = place(regions, model, ranks, micro_batches)
    layouts = [region.layout for region in regions]
    seams = tuple(seam(left, right) for left, right in zip(layouts, layouts[1:], strict=False))
    ends = None if encodes is None or encodes.compute is None else encodes.ends
    return Plan(schedule, model, regions, placement, seams, weave(regions, placement, encodes), ends)


def validate(plan: Plan) -> Plan:
    """Run all checks on a plan (see `validate.py`).

    Raises:
        PlanError: the first thing that is wrong, with the grid and the cell marked.

    Returns:
        The same plan, so calls can be chained.

    Example:
        >>> plan = validate(derive("gpipe(llm)", ModelSpec.of({"llm": 2}), ranks=2, micro_batches=3))
        >>> " ".join(map(str, plan.programs[1]))
        '1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2 1B0 1SEND_B0 1B1 1SEND_B1 1B2 1SEND_B2'
    """
    validate_programs(plan.programs, plan.placement)
    return plan
