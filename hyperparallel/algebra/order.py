"""The order of a plan as one acyclic graph of events; the projection on a rank is that rank's order.

Events: Fwd, Bwd, Coll, DpReduce, Loss, StepBarrier. Edges: Activation, Gradient, Turnaround (Fwd -> Loss ->
Bwd), Accumulate (Bwd -> DpReduce), Sequence. Source: design, section 3.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from hyperparallel.algebra.derive import Plan
from hyperparallel.algebra.program import F
from hyperparallel.algebra.seams import seam


@dataclass(frozen=True)
class Fwd:
    """Forward of one stage on one micro-batch."""

    region: int
    rank: int
    mb: int


@dataclass(frozen=True)
class Bwd:
    """Backward of one stage on one micro-batch."""

    region: int
    rank: int
    mb: int


@dataclass(frozen=True)
class Coll:
    """A message between two stages: comm is Gather, Scatter, Send or RecvGrad; seam is the pair of stages."""

    comm: str
    seam: tuple[int, int]
    mb: int


@dataclass(frozen=True)
class Loss:
    """The loss of one micro-batch, on the rank that runs its last stage."""

    rank: int
    mb: int


@dataclass(frozen=True)
class DpReduce:
    """Sum of a stage's weight gradients over `group`, ReplicaGroup or DataGroup."""

    region: int
    group: str
    rank: int


@dataclass(frozen=True)
class StepBarrier:
    """End of the step, after all reduces."""


Event = Fwd | Bwd | Coll | Loss | DpReduce | StepBarrier
Edge = tuple[Event, Event, str]


@dataclass(frozen=True)
class Order:
    """The event graph of a plan.

    Args:
        events: all nodes.
        edges: (from, to, kind of edge).
    """

    events: tuple[Event, ...]
    edges: tuple[Edge, ...]

    def nodes(self, rank: int) -> tuple[Event, ...]:
        """Project on one rank: its Fwd, Bwd and Loss events in the order it runs them."""
        return tuple(event for event in self.topological if isinstance(event, Fwd | Bwd | Loss) and event.rank == rank)

    @cached_property
    def topological(self) -> tuple[Event, ...]:
        """All events so that every edge points forward; fails if the graph has a cycle."""
        waiting = dict.fromkeys(self.events, 0)
        successors: dict[Event, list[Event]] = defaultdict(list)
        for source, target, _ in self.edges:
            waiting[target] += 1
            successors[source].append(target)
        free = [event for event, count in waiting.items() if count == 0]
        order: list[Event] = []
        for event in free:  # grows while it is walked
            order.append(event)
            for target in successors[event]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    free.append(target)
        assert len(order) == len(self.events), "the order graph has a cycle"
        return tuple(order)


def order(plan: Plan) -> Order:
    """Build the event graph of a plan.

    Args:
        plan: as derived; every backward is a whole B.

    Returns:
        The graph: data edges along every micro-batch's path, the ranks' own order as Sequence edges, and the
        reduces and the barrier that end the step.
    """
    edges: list[Edge] = []
    for mb in range(plan.micro_batches):
        edges += _path_edges(plan, mb)
    for rank, program in enumerate(plan.compute):
        events = [(Fwd if kind == F else Bwd)(plan.placement.region_of(stage), rank, mb) for stage, kind, mb in program]
        edges += [(left, right, "Sequence") for left, right in zip(events, events[1:], strict=False)]
    edges += _reduce_edges(plan)
    events = dict.fromkeys(event for source, target, _ in edges for event in (source, target))
    return Order(tuple(events), tuple(edges))


def _path_edges(plan: Plan, mb: int) -> list[Edge]:
    """Activation, Turnaround and Gradient edges of one micro-batch."""
    placement, path = plan.placement, plan.placement.path(mb)

    def event(kind: type, stage: int) -> Event:
        return kind(placement.region_of(stage), placement.rank_of(stage), mb)

    edges: list[Edge] = []
    loss = Loss(placement.rank_of(path[-1]), mb)
    edges.append((event(Fwd, path[-1]), loss, "Turnaround"))
    if placement.gates[path[-1]].receives_gradient:
        edges.append((loss, event(Bwd, path[-1]), "Turnaround"))
    for left, right in zip(path, path[1:], strict=False):
        pair = (left, right)
        comm = seam(*(plan.regions[placement.region_of(stage)].layout for stage in pair))
        edges += _through(event(Fwd, left), event(Fwd, right), Coll(comm.forward, pair, mb), "Activation", plan)
        if placement.gates[right].sends_gradient:
            edges += _through(event(Bwd, right), event(Bwd, left), Coll(comm.backward, pair, mb), "Gradient", plan)
    return edges


def _through(source: Event, target: Event, coll: Coll, kind: str, plan: Plan) -> list[Edge]:
    """Connect two events, through a message when they are on different ranks."""
    left, right = (plan.placement.rank_of(stage) for stage in coll.seam)
    if left == right:
        return [(source, target, kind)]
    return [(source, coll, kind), (coll, target, kind)]


def _reduce_edges(plan: Plan) -> list[Edge]:
    """Accumulate edges from every Bwd of a trainable stage into its reduce, and from there to the barrier."""
    placement, edges, barrier = plan.placement, [], StepBarrier()
    for stage in range(placement.stages):
        if placement.gates[stage].reduces:
            region, rank = placement.region_of(stage), placement.rank_of(stage)
            group = "DataGroup" if plan.regions[region].owner is None else "ReplicaGroup"
            # A copy that owns no micro-batch (M < P) still takes part, with a sum of nothing.
            reduce = DpReduce(region, group, rank)
            mbs = [mb for mb, path in enumerate(placement.paths) if stage in path]
            edges += [(Bwd(region, rank, mb), reduce, "Accumulate") for mb in mbs] + [(reduce, barrier, "Sequence")]
    last = [Loss(placement.rank_of(path[-1]), mb) for mb, path in enumerate(placement.paths)]
    return edges + [(loss, barrier, "Sequence") for loss in last]
