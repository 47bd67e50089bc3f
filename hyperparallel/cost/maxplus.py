"""A schedule as a (max,+)-linear map from arrival times to completion times.

Definitions, with a (+) b = max(a, b), a (x) b = a + b, zero = -inf, one = 0:

    port      a time that somebody waits for. (r,): rank r is free. (stage, "F", mb), (stage, "B", mb): the input of
              that forward or backward has arrived. The ports between the stages of two regions are their seam.
    transfer  out = T (x) in: a matrix from the times at its input ports to the times at its output ports.
    T >> U    T's outputs enter U's inputs of the same name, what U does not take goes on, what T does not give is
              asked from outside: a product of matrices, and associative.
    event     one action e of rank r that waits for port u and feeds port v, over a message of time c:
              end = d(e) (x) (free_r (+) u);  free_r' = end;  v = c (x) end
    region    the product of its events. A message belongs to the region that sends it, so a region's completion
              times are the arrival times of the next one, and a seam needs no matrix of its own.
    schedule  the product of its regions.

Regions share ranks, so their events interleave and a region comes as several blocks, each the longest run of its
events before the order must turn to another region: `transpose >> 1f1b` is three (encodes; backbone; encoder
backwards). The blocks follow one order of all events that agrees with every rank's own order; events that this
order could swap have no port in common, so all such orders have the same product. The step time is the largest
entry of T (x) 0. Source: design, section 4; Baccelli et al., Synchronization and Linearity (1992).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, W
from hyperparallel.cost.weights import Costs

Port = tuple
"""(rank,), (stage, "F", mb) or (stage, "B", mb); see above."""

ZERO = -np.inf


@dataclass(frozen=True)
class Transfer:
    """A (max,+) matrix with named ports.

    Args:
        inputs: ports that it waits for, one per column.
        outputs: ports that it sets, one per row.
        matrix: delays from input to output in the unit of the costs; -inf where an output does not wait for an input.

    Example:
        >>> one = Transfer(((0,),), ((0,), (1, "F", 0)), np.array([[4.0], [5.0]]))
        >>> two = Transfer(((1,), (1, "F", 0)), ((1,),), np.array([[3.0, 3.0]]))
        >>> (one >> two)({(0,): 0.0, (1,): 6.0})
        {(0,): 4.0, (1,): 9.0}
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    matrix: np.ndarray

    def __rshift__(self, other: Transfer) -> Transfer:
        return compose((self, other))

    def __call__(self, arrivals: dict[Port, float] | None = None) -> dict[Port, float]:
        """Return the times at the outputs; inputs that are not given are there at 0."""
        times = np.array([(arrivals or {}).get(port, 0.0) for port in self.inputs])
        return dict(zip(self.outputs, np.max(self.matrix + times, axis=1, initial=ZERO).tolist(), strict=True))


def compose(transfers: Iterable[Transfer]) -> Transfer:
    """Multiply transfers, the first one applied first.

    Args:
        transfers: any number of them.

    Returns:
        `t[0] >> t[1] >> ...`; without any, the map of no ports.
    """
    transfers = tuple(transfers)
    inputs: dict[Port, int] = {}
    given: set[Port] = set()
    for transfer in transfers:
        for port in transfer.inputs:
            if port in given:
                given.remove(port)
            else:
                assert port not in inputs, f"two events take {port}"
                inputs[port] = len(inputs)
        given.update(transfer.outputs)
    rows: dict[Port, np.ndarray] = {}  # what is waited for now, each as a row over the inputs
    for port, column in inputs.items():
        rows[port] = np.full(len(inputs), ZERO)
        rows[port][column] = 0.0
    for transfer in transfers:
        taken = np.array([rows.pop(port) for port in transfer.inputs]).reshape(len(transfer.inputs), len(inputs))
        for port, delays in zip(transfer.outputs, transfer.matrix, strict=True):
            rows[port] = np.max(delays[:, None] + taken, axis=0, initial=ZERO)
    return Transfer(tuple(inputs), tuple(rows), np.array([*rows.values()]).reshape(len(rows), len(inputs)))


def transfer(plan: Plan, costs: Costs) -> Transfer:
    """Build the transfer of a whole step.

    Args:
        plan: as derived; `validate` checks it.
        costs: durations.

    Returns:
        From free ranks and the arrival of every micro-batch at the input, to free ranks.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 2}), ranks=2, micro_batches=4)
        >>> costs = Costs({(stage, kind): time for stage in range(2) for kind, time in (("F", 1.0), ("B", 2.0))})
        >>> step = transfer(plan, costs)
        >>> step(), step({(0, "F", 0): 7.0})
        ({(0,): 15.0, (1,): 13.0}, {(0,): 22.0, (1,): 20.0})
    """
    step = compose(compose(events(plan, costs, block)) for _, block in blocks(plan))
    rows = sorted(range(len(step.outputs)), key=step.outputs.__getitem__)
    return Transfer(step.inputs, tuple(sorted(step.outputs)), step.matrix[rows])


def events(plan: Plan, costs: Costs, actions: Iterable[Action]) -> Iterator[Transfer]:
    """Yield the transfer of every action."""
    for action in actions:
        stage, kind, _ = action
        awaited, fed = ports(plan, action)
        time, delays = costs.duration(action), []
        for port in fed:
            message = Action(stage, SEND_F if kind == F else SEND_B, port[2])
            delays.append(time + (costs.duration(message) if (port[0] - stage) % plan.ranks else 0.0))
        inputs, outputs = ((stage % plan.ranks,), *awaited), ((stage % plan.ranks,), *fed)
        yield Transfer(inputs, outputs, np.array([[delay] * len(inputs) for delay in (time, *delays)]))


def ports(plan: Plan, action: Action) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the ports that an action waits for besides its rank, and those that it feeds.

    A forward of the first stage waits for its micro-batch from outside. What is needed from the same stage (a
    backward's own forward, a W's own I) stands earlier on the same rank and needs no port. Pieces of a micro-batch
    each have a port to the stage that joins them.
    """
    stage, kind, mb = action
    before, after = plan.placement.neighbours[stage, mb]
    if kind == W:
        return (), ()
    if kind == F:
        awaited = tuple((stage, F, unit) for _, unit in before) or ((stage, F, mb),)
        return awaited, () if after is None else ((after[0], F, mb),)
    sends = plan.placement.gates[stage].sends_gradient
    return () if after is None else ((stage, B, mb),), tuple((left, B, unit) for left, unit in before) if sends else ()


def blocks(plan: Plan) -> list[tuple[int, list[Action]]]:
    """Order all actions of a plan region by region, staying in a region as long as the ranks' orders allow.

    Args:
        plan: free of circular waits.

    Returns:
        (region, its actions) pairs. Joined, they are an order that every rank's order agrees with.
    """
    placement = plan.placement
    position = [0] * plan.ranks
    arrived: set[Port] = {(stage, F, unit) for (stage, unit), (before, _) in placement.neighbours.items() if not before}

    def ready() -> Iterator[tuple[int, int]]:
        for rank, program in enumerate(plan.compute):
            if position[rank] < len(program) and arrived.issuperset(ports(plan, program[position[rank]])[0]):
                yield placement.region_of(program[position[rank]].stage), rank

    found: list[tuple[int, list[Action]]] = []
    while heads := list(ready()):
        region = min(heads)[0]
        block: list[Action] = []
        awake = [rank for other, rank in heads if other == region]
        while awake:
            rank = awake.pop()
            program = plan.compute[rank]
            while position[rank] < len(program) and placement.region_of(program[position[rank]].stage) == region:
                awaited, fed = ports(plan, program[position[rank]])
                if not arrived.issuperset(awaited):
                    break
                block.append(program[position[rank]])
                position[rank] += 1
                arrived.update(fed)
                awake += [placement.rank_of(port[0]) for port in fed]
        found.append((region, block))
    assert position == list(map(len, plan.compute)), "the ranks wait in a circle"
    return found


def in_order(plan: Plan) -> list[Action]:
    """Join the blocks of a plan: all its actions, each after what it waits for."""
    return list(chain.from_iterable(block for _, block in blocks(plan)))
