"""Follow the calls between the graphs of a dumped file: one list of nodes, and what each of them reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hyperparallel.dryrun.ir_text import IR, Node, references
from hyperparallel.errors import DryRunError

P2P = frozenset({"Send", "Receive"})
# fmt: off
COLLECTIVES = frozenset([
    "AllReduce", "AllGather", "AllGatherV", "ReduceScatter", "ReduceScatterV", "Broadcast", "Reduce",
    "AlltoAll", "AlltoAllV", "AllToAllv", "Barrier", "NeighborExchange", "NeighborExchangeV2",
])
BOOKKEEPING = frozenset([
    "Depend", "UpdateState", "Load", "MakeTuple", "TupleGetItem", "Cast", "StopGradient", "MakeList",
    "ListGetItem", "TensorToScalar", "ScalarToTensor", "Switch", "Partial",
])
# fmt: on
COMMUNICATION = P2P | COLLECTIVES
# How many of the first inputs of these give data; the others only order the node.
DATA_INPUTS = {"UpdateState": 0, "Load": 1, "Depend": 1}


class Found(NamedTuple):
    """A node met on the walk, and the numbers of the nodes it reads: all of them, and those that give it data."""

    node: Node
    reads: frozenset[int]
    data: frozenset[int]


def walk(ir: IR, path: str = "graph") -> list[Found]:
    """List the nodes of the entry graph and, at each call, of the graph called; a loop's body once.

    Args:
        ir: what was read.
        path: names it in errors.

    Raises:
        DryRunError: communication inside a branch or loop that depends on data.

    Returns:
        The nodes in the printed order, without calls and returns; each reads earlier ones only.
    """
    run = _Walk(ir, path)
    run.graph(ir.entry, {})
    return run.found


class _Walk:
    """Lists the nodes of the entry graph and, at each call, of the graph called."""

    def __init__(self, ir: IR, path: str) -> None:
        self.graphs, self.path = ir.graphs, path
        self.active: list[str] = []
        self.found: list[Found] = []

    def graph(self, name: str, bound: dict[str, frozenset[int]]) -> frozenset[int]:
        """Add the nodes of a graph.

        Args:
            name: which graph.
            bound: parameter names -> numbers of the nodes behind them.

        Returns:
            Numbers of the nodes behind its output.
        """
        known, result = dict(bound), frozenset()
        self.active.append(name)
        for node in self.graphs[name].nodes:
            reads = _behind(node.args, known)
            targets = [target for target in node.calls if target in self.graphs]
            if node.op == "Return":
                result = reads
            elif targets:
                known[node.name] = self._call(node, targets, known)
            else:
                count = DATA_INPUTS.get(node.op)
                data = reads if count is None else _behind(node.args[:count], known)
                known[node.name] = frozenset([len(self.found)])
                self.found.append(Found(node, reads, data))
        self.active.pop()
        return result

    def _call(self, node: Node, targets: list[str], known: dict[str, frozenset[int]]) -> frozenset[int]:
        """Add the graphs that a node calls; every branch once, and of a loop the body once."""
        # What a closure has captured is taken to stand behind each of its parameters.
        captured = known.get(node.closure, frozenset()) if node.closure else frozenset()
        given = [_behind([arg], known) for arg in node.args]
        start, result = len(self.found), captured
        for target in targets:
            if target in self.active:
                result = result.union(*given)
                continue
            params = self.graphs[target].params
            bound = dict.fromkeys(params, captured)
            # The arguments of a call come after what a closure has captured.
            bound.update(zip(params[len(params) - len(given) :], given, strict=False))
            result |= self.graph(target, bound)
        if len(targets) > 1 and (inside := [f.node for f in self.found[start:] if f.node.op in COMMUNICATION]):
            raise DryRunError(
                f"{self.path}: {inside[0].op} ({inside[0].scope}) is in a branch or loop that depends on data, so the "
                "order is not fixed when compiling; take communication out of the branch"
            )
        return result


def _behind(args: Sequence[str], known: Mapping[str, frozenset[int]]) -> frozenset[int]:
    names = [name for arg in args for name in references(arg) if name in known]
    return known[names[0]] if len(names) == 1 else frozenset().union(*(known[name] for name in names))
