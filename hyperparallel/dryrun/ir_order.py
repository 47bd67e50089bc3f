"""The order of communication and compute that a dumped graph guarantees.

A dumped graph is a set of nodes with dependencies, printed in *one* topological order. Nodes connected by a path
of inputs (Depend included) run in that order; others may run in another order in the back end. `Event.before`
holds what must precede each node, and `unforced` lists neighbours in the printed order that nothing holds in
place.

*Marked* events are the communication operators and the gates. A gate is a `Depend` whose primitive carries an
attribute `action`: `gate = ops.Depend(); gate.add_prim_attr("action", "4F2")`. MindSpore 2.10 keeps it to the final
graph, and does not merge gates with different actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hyperparallel.dryrun.ir_text import IR, Node, read_ir, references
from hyperparallel.dryrun.ir_walk import BOOKKEEPING, COMMUNICATION, DATA_INPUTS, P2P, Found, walk
from hyperparallel.errors import DryRunError

_SHAPE = re.compile(r"\[?[A-Z][A-Za-z]*\d+\]?>?\]?, \(([\d, -]*)\)")
_TYPE = re.compile(r"Tensor\[(\w+)\]")


class Event(NamedTuple):
    """One node of the graph, calls of sub-graphs resolved.

    Args:
        index: position in the list it came in, the printed order.
        op: "Send", "Receive", "AllReduce", "MatMul", "ReluGrad", "Depend" (a gate), ...
        tag: sr_tag of Send and Receive.
        peer: rank at the other end of Send and Receive, a global one if `ranks` is known.
        group: communication group.
        ranks: global ranks of that group, if known.
        micro: micro-batch, where the pipeline passes (or the user) noted it.
        backward: made by automatic differentiation.
        scope: "Default/stage-Stage/MatMul-op0".
        shape: of the first output; () for a scalar, None if not known.
        dtype: of the first output, "Float32".
        attrs: every attribute, as integer or text.
        inputs: indices of the events whose data it reads; bookkeeping that is not in the list is looked through.
        reads: inputs and parameters of the graph whose data it reads, also through bookkeeping and copies.
        mark: number among the marked events, None if not marked.
        before: bit k is set if the marked event with number k must precede this one.
    """

    index: int
    op: str
    tag: int | None
    peer: int | None
    group: str | None
    ranks: tuple[int, ...] | None
    micro: int | None
    backward: bool
    scope: str
    shape: tuple[int, ...] | None
    dtype: str | None
    attrs: Mapping[str, int | str]
    inputs: tuple[int, ...]
    reads: tuple[str, ...]
    mark: int | None
    before: int

    @property
    def action(self) -> str | None:
        """The attribute `action`, as text."""
        return str(self.attrs["action"]) if "action" in self.attrs else None

    def must_follow(self, other: Event) -> bool:
        """Tell whether a marked event of the same list must precede this one."""
        assert other.mark is not None, "only marked events can be asked for"
        return bool(self.before >> other.mark & 1)

    def __str__(self) -> str:
        parts = [f"{self.index:3}", f"{self.op:13}"]
        if self.tag is not None:
            parts.append(f"tag {self.tag:<3} peer {self.peer}")
        elif self.group:
            parts.append(f"group {self.group[:24]}{list(self.ranks or ())}")
        if self.micro is not None:
            parts.append(f"micro {self.micro}")
        if self.action is not None:
            parts.append(f"action {self.action}")
        return "  ".join([*parts, "B" if self.backward else "F", self.scope])


def final_ir(folder: Path | str) -> Path:
    """Find the last front-end graph of one rank.

    Args:
        folder: its `rank_R` below the folder that the graphs were saved to.

    Raises:
        DryRunError: there is none.

    Returns:
        Its path; the number in the name differs between networks.
    """
    numbered = {}
    for path in Path(folder).glob("*_validate_*.ir"):
        if match := re.search(r"_validate_(\d+)\.ir$", path.name):
            numbered[int(match[1])] = path
    if not numbered:
        raise DryRunError(f"no *_validate_*.ir in {folder}; compile with graphs saved, pass 'validate' or 'all'")
    return numbered[max(numbered)]


def read_order(
    path: Path | str, keep_bookkeeping: bool = False, groups: Mapping[str, Sequence[int]] | None = None
) -> list[Event]:
    """Read the events of a dumped graph in the printed order.

    Args:
        path: a `*.ir` file.
        keep_bookkeeping: keep the nodes in `BOOKKEEPING` too; gates are always kept.
        groups: global ranks of the groups made with `create_group`, by name. Graphs made by the parallel passes
            name every group's ranks; without them, peers stay numbers inside their group.

    Raises:
        DryRunError: not a dumped graph, or communication inside a branch or loop that depends on data.

    Returns:
        The events; `marked(events)[k]` is the one that bit k of `before` stands for.
    """
    return order_of(read_ir(path), str(path), keep_bookkeeping, groups)


def order_of(
    ir: IR, path: str = "graph", keep_bookkeeping: bool = False, groups: Mapping[str, Sequence[int]] | None = None
) -> list[Event]:
    """Order the nodes of a graph that was read; see `read_order`."""
    return _events(walk(ir, path), keep_bookkeeping, groups or {})


def comm_only(events: Sequence[Event]) -> list[Event]:
    """Pick the communication operators."""
    return [event for event in events if event.op in COMMUNICATION]


def compute_only(events: Sequence[Event]) -> list[Event]:
    """Pick what computes: neither communication, nor gates, nor other bookkeeping."""
    return [event for event in events if event.op not in COMMUNICATION and event.op not in BOOKKEEPING]


def marked(events: Sequence[Event]) -> list[Event]:
    """Pick the marked events; position k is bit k of `Event.before`."""
    return [event for event in events if event.mark is not None]


def must_precede(events: Sequence[Event], event: Event) -> list[Event]:
    """List the marked events of a list that must precede one of its events."""
    return [other for other in marked(events) if event.must_follow(other)]


def unforced(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """List neighbouring communication operators whose printed order no dependency guarantees."""
    comm = comm_only(events)
    return [(first, then) for first, then in zip(comm, comm[1:], strict=False) if not then.must_follow(first)]


def numbers_in(text: object) -> tuple[int, ...]:
    """List the integers in a text such as "(0, 1)"."""
    return tuple(int(number) for number in re.findall(r"\d+", str(text)))


def _events(found: Sequence[Found], keep_bookkeeping: bool, groups: Mapping[str, Sequence[int]]) -> list[Event]:
    # Per node found: its own bit if it is marked and those of all its marked ancestors. (Sets of ancestors would
    # take time and memory quadratic in the length of the graph.)
    upto: list[int] = []
    data: list[frozenset[int]] = []  # per node found: indices of the events that it stands for as an input
    passed: list[tuple[str, ...]] = []  # per node found: the parameters that it hands on unchanged
    events: list[Event] = []
    marks = 0
    for node, reads, reads_data in found:
        before = 0
        for number in reads:
            before |= upto[number]
        inputs = frozenset().union(*(data[number] for number in reads_data))
        own = _parameters(node, [passed[number] for number in reads_data])
        passed.append(own if node.op in BOOKKEEPING or node.op == "TensorMove" else ())
        is_gate = node.op == "Depend" and "action" in node.attrs
        is_marked = is_gate or node.op in COMMUNICATION
        upto.append(before | 1 << marks if is_marked else before)
        if node.op in BOOKKEEPING and not is_gate and not keep_bookkeeping:
            data.append(inputs)
            continue
        data.append(frozenset([len(events)]))
        mark = marks if is_marked else None
        marks += is_marked
        events.append(_event(len(events), node, groups, (tuple(sorted(inputs)), own), mark, before))
    return events


def _parameters(node: Node, passed: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Name the inputs and parameters of the graph that a node reads, by itself or through what passes them on."""
    args = node.args[: DATA_INPUTS.get(node.op, len(node.args))]
    own = [name for arg in args for name in references(arg) if name.startswith("%para")]
    return tuple(dict.fromkeys([*own, *(name for names in passed for name in names)]))


def _event(
    index: int,
    node: Node,
    groups: Mapping[str, Sequence[int]],
    sources: tuple[tuple[int, ...], tuple[str, ...]],
    mark: int | None,
    before: int,
) -> Event:
    attrs = node.attrs
    ranks = numbers_in(attrs.get("group_rank_ids", attrs.get("rank_list", ""))) or None
    if ranks is None and attrs.get("group") in groups:
        ranks = tuple(groups[attrs["group"]])
    shape, dtype, micro = _SHAPE.search(node.type), _TYPE.search(node.type), attrs.get("micro")
    return Event(
        index=index,
        op=node.op,
        tag=attrs.get("sr_tag"),
        peer=_peer(node, ranks) if node.op in P2P else None,
        group=attrs.get("group"),
        ranks=ranks,
        micro=micro if isinstance(micro, int) else None,
        backward="Gradients/" in node.scope or "forward_unique_id" in attrs,
        scope=node.scope,
        shape=numbers_in(shape[1]) if shape else None,
        dtype=dtype[1] if dtype else None,
        attrs=attrs,
        inputs=sources[0],
        reads=sources[1],
        mark=mark,
        before=before,
    )


def _peer(node: Node, ranks: tuple[int, ...] | None) -> int | None:
    end = ("dst_global_rank", "dest_rank") if node.op == "Send" else ("src_global_rank", "src_rank")
    if end[0] in node.attrs:
        return node.attrs[end[0]]
    peer = node.attrs.get(end[1])
    # The numbers in the operator count inside its group.
    return ranks[peer] if ranks and isinstance(peer, int) and peer < len(ranks) else peer
