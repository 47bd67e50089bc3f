"""Show a cell of the programs inside its neighbourhood, for error messages."""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra.program import Program
from hyperparallel.errors import PlanError

_WINDOW = 5  # cells shown on each side of the marked one
_ROWS = 2  # ranks shown on each side


def mark(programs: Sequence[Program], rank: int, step: int) -> str:
    """Draw the ranks around a cell, the cell as `>6B3<`.

    Args:
        programs: actions per rank.
        rank: row of the cell.
        step: column of the cell from 0; one past the end of the row marks a place where something is missing.

    Returns:
        Lines of text, one per rank, columns aligned by step.

    Example:
        >>> from hyperparallel.algebra.text import from_csv
        >>> print(mark(from_csv("0F0,0B0\\n1F0,1B0\\n"), rank=1, step=1))
          rank 0 |  0F0   0B0
          rank 1 |  1F0  >1B0<
    """
    first, last = max(0, step - _WINDOW), step + _WINDOW + 1
    rows = range(max(0, rank - _ROWS), min(len(programs), rank + _ROWS + 1))
    cells = {}
    for row in rows:
        for column in range(first, min(last, max(len(programs[row]), step + 1 if row == rank else 0))):
            text = str(programs[row][column]) if column < len(programs[row]) else "?"
            cells[row, column] = f">{text}<" if (row, column) == (rank, step) else f" {text} "
    widths = {
        column: max(len(cell) for (_, other), cell in cells.items() if other == column)
        for column in {column for _, column in cells}
    }
    lines = []
    for row in rows:
        shown = [cells[row, column].ljust(widths[column]) for column in sorted(widths) if (row, column) in cells]
        lead = "... " if first and len(programs[row]) > first else ""
        tail = " ..." if len(programs[row]) > last else ""
        lines.append(f"  rank {row} | {lead}{' '.join(shown).rstrip()}{tail}".rstrip())
    return "\n".join(lines)


def refuse(programs: Sequence[Program], rank: int, step: int, message: str, way_out: str) -> PlanError:
    """Build the error for a cell: what is wrong and where, the grid with the cell marked, one way out."""
    return PlanError(f"rank {rank}, step {step}: {message}\n{mark(programs, rank, step)}\n  {way_out}")
