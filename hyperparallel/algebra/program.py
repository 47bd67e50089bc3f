"""Actions and programs: schedule as data that prints and parses.

An action is `2F0`, `6B3`, `6I3`, `6W3` (compute) or `2SEND_F5`, `4RECV_F5`, `4SEND_B5`, `2RECV_B5` (message):
stage, kind, micro-batch. Where the images of a micro-batch are encoded in pieces, `2F5.0`, `3F5.1`: piece 0 and piece 1
of micro-batch 5. A program is the list of actions of one rank, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hyperparallel.errors import ProgramSyntaxError

F, B, I, W = "F", "B", "I", "W"  # noqa: E741  (the field's letter for the input-gradient part)
SEND_F, RECV_F, SEND_B, RECV_B = "SEND_F", "RECV_F", "SEND_B", "RECV_B"
COMPUTE = frozenset({F, B, I, W})
SENDS = frozenset({SEND_F, SEND_B})
RECEIVES = frozenset({RECV_F, RECV_B})

_ACTION = re.compile(r"(\d{1,9})(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


class Piece(NamedTuple):
    """A piece of a micro-batch's images, encoded by itself.

    Example:
        >>> str(Piece(5, 0))
        '5.0'
    """

    mb: int
    index: int

    def __str__(self) -> str:
        return f"{self.mb}.{self.index}"


Unit = int | Piece
"""What an action works on: a micro-batch, or a piece of one."""


def micro_batch(unit: Unit) -> int:
    """Return the micro-batch that a unit is, or is a piece of.

    Example:
        >>> micro_batch(5), micro_batch(Piece(5, 0))
        (5, 5)
    """
    return unit.mb if isinstance(unit, Piece) else unit


class Action(NamedTuple):
    """One entry of a rank's program.

    Example:
        >>> str(Action(2, "SEND_F", 5)), str(Action(2, "F", Piece(5, 0)))
        ('2SEND_F5', '2F5.0')
    """

    stage: int
    kind: str
    mb: Unit

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.mb}"

    @property
    def is_compute(self) -> bool:
        """True for F, B, I, W; False for messages."""
        return self.kind in COMPUTE


Program = Sequence[Action]
"""Actions of one rank in order; a plan has one per rank."""


def forwards_only(program: Program) -> list[Action]:
    """Leave out the backwards and their messages, as for an evaluation.

    Example:
        >>> [str(action) for action in forwards_only([Action(0, "F", 1), Action(0, "SEND_F", 1), Action(0, "B", 1)])]
        ['0F1', '0SEND_F1']
    """
    return [action for action in program if action.kind in (F, SEND_F, RECV_F)]


def parse_action(text: str) -> Action:
    """Parse one action.

    Raises:
        ProgramSyntaxError: the text is not exactly one action.

    Example:
        >>> parse_action("6B3")
        Action(stage=6, kind='B', mb=3)
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ProgramSyntaxError(
            f"{text!r} is not an action; expected stage, kind, micro-batch "
            "such as 2F0, 6B3, 6I3, 6W3, 2SEND_F5 or 4RECV_F5, or with a piece of a micro-batch: 2F5.0"
        )
    stage, kind, mb, piece = match.groups()
    return Action(int(stage), kind, int(mb) if piece is None else Piece(int(mb), int(piece)))
