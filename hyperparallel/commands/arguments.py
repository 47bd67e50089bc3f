"""What commands share: the parser that reports through HyperParallelError, number types and size limits."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.errors import HyperParallelError
from hyperparallel.limits import MAX_TIME, MAX_WAIT, size_problem
from hyperparallel.paths import expand_home


class UsageError(HyperParallelError):
    """A command line that does not say what to do; the message says what to write."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError where argparse would print its usage and exit.

    Options are never abbreviated, so a script that works today does not break when an option is added.
    """

    def __init__(self, **settings: Any):
        self.options: list[str] = []
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument and remember the names of options, for `refuse_unknown`."""
        self.options += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def refuse_unknown(self, word: str) -> NoReturn:
        """Raise for an option that this command does not have, with the nearest one that it has."""
        name = word.split("=")[0]
        if name in self.options:
            raise UsageError(f"{name} is an option of a command, so write it after the command; see {self.prog} --help")
        hint = did_you_mean(name, self.options) or f"; expected one of {', '.join(self.options)}"
        raise UsageError(f"unknown option {name}{hint} (see {self.prog} --help)")


def whole_number(most: int) -> Callable[[str], int]:
    """Make a reader of whole numbers, for `type=` of an argument.

    Args:
        most: the largest that is taken; the smallest is 1.
    """

    def read(text: str) -> int:
        # Cut off, as Python takes long for a million digits.
        value = int(text.lstrip("0")[:30] or "0") if re.fullmatch("[0-9]+", text, re.ASCII) else 0
        if 1 <= value <= most:
            return value
        wanted = f"at most {most}" if value > most else "at least 1 such as 4"
        raise argparse.ArgumentTypeError(f"expected a whole number of {wanted}, got {text[:40]!r}")

    return read


def file_path(text: str) -> str:
    """Read a path, for `type=` of an argument; `~` at its start is the home folder."""
    try:
        return expand_home(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration(text: str) -> float:
    """Read a time from 0 to MAX_TIME, for `type=` of an argument."""
    return _not_negative(text, MAX_TIME, "a time", "0.5")


def seconds(text: str) -> float:
    """Read how long something may wait or work, for `type=` of an argument."""
    return _not_negative(text, MAX_WAIT, "seconds", "10")


def _not_negative(text: str, most: float, what: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:  # false for nan too
        raise argparse.ArgumentTypeError(f"expected {what} from 0 to {most:g} such as {example}, got {text!r}")
    return value


def require(command: str, example: str, **given: object) -> None:
    """Check that options were given.

    Args:
        command: name for the message.
        example: a command line that works.
        given: value by option name with `_` for `-`; None is missing.

    Raises:
        UsageError: names all options that are missing.
    """
    missing = [option_name(name) for name, value in given.items() if value is None]
    if missing:
        names = " and ".join([", ".join(missing[:-1])] * (len(missing) > 1) + missing[-1:])
        raise UsageError(f"{command} needs {names}; for example\n  {example}")


def option_name(name: str) -> str:
    """Return `--micro-batches` for `micro_batches`."""
    return "--" + name.replace("_", "-")


def check_size(ranks: int, micro_batches: int, count: int = 1) -> None:
    """Refuse sizes that would only fill the memory.

    Args:
        ranks: P.
        micro_batches: M.
        count: n of the largest `*n` in the schedule.

    Raises:
        UsageError: the plan is too large.
    """
    problem = size_problem(ranks, micro_batches, count, ("--ranks", "--micro-batches"))
    if problem is not None:
        raise UsageError(problem)
