"""Programs as text and CSV, both ways.

CSV: one row per rank, one cell per action, blank cells for idle. Text: a line `rank r: ...` per rank with
actions separated by spaces. Both read back to equal programs.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from hyperparallel.algebra.program import Action, Program, parse_action
from hyperparallel.errors import ProgramSyntaxError


def to_csv(programs: Sequence[Program]) -> str:
    """Write programs as CSV, one row per rank, no header.

    Example:
        >>> to_csv([[Action(0, "F", 0), Action(0, "B", 0)]])
        '0F0,0B0\\n'
    """
    return "".join(",".join(map(str, program)) + "\n" for program in programs)


def from_csv(text: str, name: str = "<text>") -> tuple[tuple[Action, ...], ...]:
    """Read programs from CSV; blank cells are skipped, a row of blanks is a rank with nothing to do.

    Args:
        text: the file's content.
        name: file name for errors.

    Raises:
        ProgramSyntaxError: names file, row and column (from 1) of the first cell that is not an action.
    """
    programs = []
    for row, cells in enumerate(read_rows(text, name), start=1):
        program = []
        for column, cell in enumerate(cells, start=1):
            if cell.strip():
                program.append(_parse_cell(cell.strip(), f"{name}, row {row}, column {column}"))
        programs.append(tuple(program))
    return tuple(programs)


def read_rows(text: str, name: str) -> list[list[str]]:
    """Split CSV into its cells.

    Raises:
        ProgramSyntaxError: not a CSV table; names file and row.
    """
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader(io.StringIO(text), strict=True))  # strict: a stray quote must not swallow the rest
    except csv.Error as error:
        raise ProgramSyntaxError(
            f"{name}, row {len(rows) + 1}: not a CSV table ({error}); "
            "expected one row per rank with cells such as 0F0,1F0"
        ) from None
    return rows


def to_text(programs: Sequence[Program]) -> str:
    """Write programs as text, a line per rank.

    Example:
        >>> print(to_text([[Action(0, "F", 0)], [Action(1, "F", 0)]]), end="")
        rank 0: 0F0
        rank 1: 1F0
    """
    return "".join(
        f"rank {rank}: {' '.join(map(str, program))}".rstrip() + "\n" for rank, program in enumerate(programs)
    )


def from_text(text: str, name: str = "<text>") -> tuple[tuple[Action, ...], ...]:
    """Read programs from text.

    Raises:
        ProgramSyntaxError: names file, row and column (word) of what is not a program.
    """
    programs: list[tuple[Action, ...]] = []
    for row, line in enumerate(text.splitlines(), start=1):
        match = re.fullmatch(r"rank (\d+):(.*)", line)
        if match is None or match.group(1) != str(len(programs)):
            raise ProgramSyntaxError(f"{name}, row {row}: expected 'rank {len(programs)}: ...', got {line[:40]!r}")
        words = match.group(2).split()
        programs.append(
            tuple(
                _parse_cell(word, f"{name}, row {row}, column {column}") for column, word in enumerate(words, start=1)
            )
        )
    return tuple(programs)


def _parse_cell(cell: str, where: str) -> Action:
    try:
        return parse_action(cell)
    except ProgramSyntaxError as error:
        raise ProgramSyntaxError(f"{where}: {error}") from None
