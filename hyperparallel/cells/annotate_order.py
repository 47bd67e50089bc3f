"""What MindSpore's engine made of an annotated network: the order of forwards, backwards and messages on one rank.

Read from the final graph of a dry run. The engine notes micro-batch and chunk on what it orders. With lazy_inline a
forward is a call of one graph and a backward a call of the closure that this returned, at best twice: input gradients
first, weight gradients later. Without, a stage's operators carry the micro-batch themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import RECV_B, RECV_F, SEND_B, SEND_F, Action, B, F, I, W
from hyperparallel.dryrun.ir_order import BOOKKEEPING, COMMUNICATION, P2P, final_ir
from hyperparallel.dryrun.ir_text import Node, read_ir, references
from hyperparallel.errors import DryRunError

_KINDS = {("Send", False): SEND_F, ("Receive", False): RECV_F, ("Send", True): SEND_B, ("Receive", True): RECV_B}


def engine_order(folder: Path | str, rank: int, ranks: int) -> list[Action]:
    """Read the order of one pipeline rank.

    Args:
        folder: `rank_R` of the graphs that the dry run saved, of any replica of that rank.
        rank: r.
        ranks: P.

    Raises:
        DryRunError: no final graph, or one that no pipeline scheduler has ordered.

    Returns:
        Actions as in a plan's program, in the printed order, which is one that the graph's dependencies allow. Messages
        that carry a shared parameter or its gradient are left out.
    """
    ir = read_ir(final_ir(folder))
    nodes = ir.graphs[ir.entry].nodes
    found = _calls(nodes) or _spread(nodes)
    if not found:
        raise DryRunError(f"{folder}: nothing there carries a micro-batch; was the network compiled with a pipeline?")
    for at, node in enumerate(nodes):
        if node.op in P2P and ("pipeline_begin" in node.attrs or "pipeline_end" in node.attrs):
            kind = _KINDS[node.op, "Gradients/" in node.scope]
            found.append((at, node.attrs.get("chunk", 0), kind, node.attrs["micro"]))
    return [Action(chunk * ranks + rank, kind, micro) for _, chunk, kind, micro in sorted(found)]


def beside_plan(plan: Plan, orders: Sequence[Sequence[Action]], messages: bool = False) -> str:
    """Print the engine's order under the plan's.

    Args:
        plan: the one that was handed over.
        orders: of every rank, from `engine_order`.
        messages: print them too, else only what computes.

    Returns:
        Two lines per rank, without a last newline.
    """
    lines = []
    for rank, (program, order) in enumerate(zip(plan.programs, orders, strict=True)):
        for head, actions in ((f"rank {rank}   plan  ", program), ("         engine", order)):
            lines.append(f"{head}   {' '.join(str(a) for a in actions if messages or a.is_compute)}")
    return "\n".join(lines)


def _calls(nodes: Sequence[Node]) -> list[tuple[int, int, str, int]]:
    """Find forwards and backwards that are calls: (position, chunk, kind, micro-batch)."""
    by_name = {node.name: node for node in nodes}
    found, backwards = [], defaultdict(list)
    for at, node in enumerate(nodes):
        if node.op == "call" and "micro" in node.attrs:
            found.append((at, node.attrs["chunk"], F, node.attrs["micro"]))
        elif node.op == "call" and node.closure:
            forward = _maker(node.closure, by_name)
            if forward is not None:
                backwards[forward.attrs["chunk"], forward.attrs["micro"]].append(at)
    for (chunk, micro), at in backwards.items():
        kinds = (B,) if len(at) == 1 else (I, W)
        found += [(position, chunk, kind, micro) for position, kind in zip(at, kinds, strict=True)]
    return found


def _maker(closure: str, by_name: dict[str, Node]) -> Node | None:
    """Find the forward that returned a closure, on the way back through bookkeeping and earlier calls of it."""
    node = by_name.get(closure)
    while node is not None and not (node.op == "call" and "micro" in node.attrs):
        first = [node.closure] if node.op == "call" else references(node.args[0]) if node.args else []
        node = by_name.get(first[0]) if first and first[0] else None
    return node


def _spread(nodes: Sequence[Node]) -> list[tuple[int, int, str, int]]:
    """Find forwards and backwards whose operators lie open in the graph; each stands where the middle of them is."""
    places = defaultdict(list)
    for at, node in enumerate(nodes):
        if "micro" in node.attrs and node.op not in COMMUNICATION | BOOKKEEPING:
            places[B if "Gradients/" in node.scope else F, node.attrs["micro"]].append(at)
    most = Counter({key: len(at) for key, at in places.items()})
    return [(at[len(at) // 2], 0, kind, micro) for (kind, micro), at in places.items() if most[kind, micro] > 1]
