"""The order of a plan as one acyclic graph of events; the projection on a rank is that rank's order.

Events: Fwd, Bwd (a whole backward B, or its part I), WeightGrad (its part W), Coll, DpReduce, Loss, StepBarrier.
Edges: Activation, Gradient, Turnaround (Fwd -> Loss -> Bwd), Split (I -> W), Accumulate (B or W -> DpReduce),
Sequence. Source: design, section 3.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from hyperparallel.algebra.derive import Plan
from hyperparallel.algebra.placement import Node
from hyperparallel.algebra.program import Action, B, F, I, Unit, W
from hyperparallel.algebra.seams import seam


@dataclass(frozen=True)
class Fwd:
    """Forward of one stage on one micro-batch."""

    region: int
    rank: int
    mb: Unit


@dataclass(frozen=True)
class Bwd:
    """Backward of one stage on one micro-batch: what its upstream waits for, so I where I and W are apart."""

    region: int
    rank: int
    mb: Unit


@dataclass(frozen=True)
class WeightGrad:
    """Weight gradient (W) of one stage on one micro-batch whose backward comes in two parts."""

    region: int
    rank: int
    mb: Unit


@dataclass(frozen=True)
class Coll:
    """A message between two stages: comm is Gather, Scatter, Send or RecvGrad; seam is the pair of stages."""

    comm: str
    seam: tuple[int, int]
    mb: Unit


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


EVENTS = {F: Fwd, B: Bwd, I: Bwd, W: WeightGrad}
"""Event of every kind of compute action."""

Event = Fwd | Bwd | WeightGrad | Coll | Loss | DpReduce | StepBarrier
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
        """Project on one rank: its Fwd, Bwd, WeightGrad and Loss events in the order it runs them."""
        kinds = (Fwd, Bwd, WeightGrad, Loss)
        return tuple(event for event in self.topological if isinstance(event, kinds) and event.rank == rank)

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
        plan: as derived.

    Returns:
        The graph: data edges along every micro-batch's path, the ranks' own order as Sequence edges, and the
        reduces and the barrier that end the step.
    """
    edges: list[Edge] = []
    for mb in range(plan.micro_batches):
        edges += _path_edges(plan, mb)
    for program in plan.compute:
        events = [_event(plan, action) for action in program]
        edges += [(left, right, "Sequence") for left, right in zip(events, events[1:], strict=False)]
    edges += _reduce_edges(plan)
    events = dict.fromkeys(event for source, target, _ in edges for event in (source, target))
    return Order(tuple(events), tuple(edges))


def _event(plan: Plan, action: Action) -> Event:
    stage, kind, mb = action
    return EVENTS[kind](plan.placement.region_of(stage), plan.placement.rank_of(stage), mb)


def _path_edges(plan: Plan, mb: int) -> list[Edge]:
    """Activation, Turnaround and Gradient edges of one micro-batch."""
    placement, path = plan.placement, plan.placement.path(mb)

    def event(kind: str, node: Node) -> Event:
        return _event(plan, Action(node[0], kind, node[1]))

    edges: list[Edge] = []
    last, loss = (path[-1], mb), Loss(placement.rank_of(path[-1]), mb)
    edges.append((event(F, last), loss, "Turnaround"))
    if placement.gates[path[-1]].receives_gradient:
        edges.append((loss, event(B, last), "Turnaround"))
    for stage in path:
        for left in placement.neighbours.get((stage, mb), ((),))[0]:  # a piece, the first of its path, has none
            right, pair = (stage, mb), (left[0], stage)
            comm = seam(*(plan.regions[placement.region_of(one)].layout for one in pair))
            edges += _through(event(F, left), event(F, right), Coll(comm.forward, pair, left[1]), "Activation", plan)
            if placement.gates[stage].sends_gradient:
                edges += _through(event(B, right), event(B, left), Coll(comm.backward, pair, left[1]), "Gradient", plan)
    return edges


def _through(source: Event, target: Event, coll: Coll, kind: str, plan: Plan) -> list[Edge]:
    """Connect two events, through a message when they are on different ranks."""
    left, right = (plan.placement.rank_of(stage) for stage in coll.seam)
    if left == right:
        return [(source, target, kind)]
    return [(source, coll, kind), (coll, target, kind)]


def _reduce_edges(plan: Plan) -> list[Edge]:
    """Split and Accumulate edges into the reduce of every trainable stage, and from there to the barrier."""
    placement, barrier = plan.placement, StepBarrier()
    edges: list[Edge] = []
    reduces = {
        stage: DpReduce(
            placement.region_of(stage),
            "DataGroup" if placement.owners[placement.region_of(stage)] is None else "ReplicaGroup",
            placement.rank_of(stage),
        )
        for stage in range(placement.stages)
        if placement.gates[stage].reduces
    }
    for action in (action for program in plan.compute for action in program):
        event = _event(plan, action)
        if action.kind == W:
            edges.append((_event(plan, action._replace(kind=I)), event, "Split"))
        if action.kind in (B, W) and action.stage in reduces:
            edges.append((event, reduces[action.stage], "Accumulate"))
    # A copy that owns no micro-batch (M < P) still takes part, with a sum of nothing.
    edges += [(reduce, barrier, "Sequence") for reduce in reduces.values()]
    last = [Loss(placement.rank_of(path[-1]), mb) for mb, path in enumerate(placement.paths)]
    return edges + [(loss, barrier, "Sequence") for loss in last]
