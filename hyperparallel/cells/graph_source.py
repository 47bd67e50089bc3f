"""What the source of a rank's step is made from, and what it uses. Pure text; no MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hyperparallel.algebra.program import Action, Unit


def identifier(named: Unit | Action) -> str:
    """Write a unit or an action so that it can be part of a name in Python.

    Example:
        >>> from hyperparallel.algebra.program import Piece
        >>> identifier(Action(2, "F", Piece(5, 0)))
        '2F5p0'
    """
    return str(named).replace(".", "p")


class StageFacts(NamedTuple):
    """What the source needs to know of a stage on this rank."""

    columns: tuple[str, ...]
    """Batch columns its layers read, in the order of the slab's arguments."""
    trains: bool
    """Whether it has backwards."""
    has_weights: bool
    """Whether its backward returns weight gradients."""
    recompute: bool = False
    """Whether the backward runs the forward again instead of keeping what is in it."""


class Wire(NamedTuple):
    """One tensor of one message, at one of its ends."""

    action: Action
    index: int
    """Which tensor of the carry."""


@dataclass(frozen=True)
class Frame:
    """What another training loop has around a step.

    Lines of the same `construct`, not a Cell around it: the graph is then the one that is proved for our own runner.

    Args:
        arguments: names of the arguments.
        before: lines that make `rates`, `scale` and the columns of micro-batches, given the latter.
        result: what is returned, an expression of `packed`, `norm` and `finite`.
        parts: attribute name -> what these lines use.
    """

    arguments: tuple[str, ...]
    before: Callable[[Sequence[tuple[str, Unit]]], list[str]]
    result: str
    parts: Mapping[str, object]


@dataclass
class Source:
    """The text of a `construct`, and what it uses.

    Args:
        arguments: names of the step's inputs: the rates, a scale if there is one, then a column of a micro-batch each.
        inputs: (column, micro-batch or piece) of the last of them.
        gates: one per action, in order: the names of the Depend operators that carry the action.
        wires: the tensors that are sent and received.
        lines: body of `construct`.
        methods: further methods that it calls, by name.
        token: what the end of the step waits for.
        packed: name of the sum of the packed losses; that of zeros where this rank has none.
        summed: stages with a sum of gradients `acc`.
    """

    arguments: list[str] = field(default_factory=lambda: ["rates"])
    inputs: list[tuple[str, Unit]] = field(default_factory=list)
    gates: list[Action] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    methods: dict[str, tuple[str, ...]] = field(default_factory=dict)
    token: str = "rates"
    packed: str = "self.nothing"
    summed: list[int] = field(default_factory=list)

    def text(self, title: str) -> str:
        """Return the module that defines the Cell `Step`."""
        head = f'"""{title}; generated from the plan, not to be edited."""\n\n'
        head += "from hyperparallel.cells.graph_cell import StepCell\n\n\nclass Step(StepCell):\n"
        head += f'    """{title}."""\n\n    def construct(self, {", ".join(self.arguments)}):\n'
        body = "".join(f"        {line}\n" for line in self.lines)
        more = "".join("\n" + "".join(f"    {line}\n" for line in method) for method in self.methods.values())
        return head + body + more
