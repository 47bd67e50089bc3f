"""The options of `hyperparallel dryrun`; apart, so that the command line is parsed without importing MindSpore."""

from __future__ import annotations

import argparse
import re

from hyperparallel.commands.arguments import UsageError, file_path, seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `dryrun`, besides the configuration."""
    parser.add_argument("--ranks", default="all", metavar="all|0,3", help="workers to compile (default: all)")
    parser.add_argument("--schedule", metavar="LINE", help="another schedule line than the configuration's")
    parser.add_argument(
        "--level",
        type=int,
        choices=(0, 1),
        default=0,
        help="0: front end; 1: back end too, with the order of kernels and simulated memory (default: 0)",
    )
    parser.add_argument("--keep", type=file_path, metavar="DIR", help="keep the compiled graphs in this folder")
    parser.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="seconds allowed to one worker")


def workers(text: str) -> list[int] | None:
    """Parse `all` (None) or worker numbers such as `0,3`.

    Raises:
        UsageError: it is neither.
    """
    if text == "all":
        return None
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text, re.ASCII):
        raise UsageError(f"--ranks {text!r} is neither 'all' nor worker numbers joined by commas, such as 0,3")
    return [int(number) for number in text.split(",")]
