"""Paths that a user writes, in a file or on the command line.

Whether there is such a file or folder is asked of `os.path`: pathlib's questions raise where a name is too long or a
folder may not be looked into.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator


def expand_home(text: str) -> str:
    """Put the home folder in the place of `~` or `~user` at the start of a path.

    Args:
        text: what the user wrote; a file that is named `~` is `./~`.

    Raises:
        ValueError: it is empty, holds what no path can, or names a user that there is not.

    Example:
        >>> expand_home("runs/~x")
        'runs/~x'
    """
    if not text.strip():
        raise ValueError("an empty path; give a file or folder, or leave it out")
    if "\0" in text:
        raise ValueError("a path with a zero byte in it; give a path that can be")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError("the locale of this process has not all of these characters; set LC_ALL=C.UTF-8") from None
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ValueError(f"there is no home folder of {text.split('/')[0]!r}; write ./{text} if it is a name") from None


def print_any_path() -> None:
    """Let standard output take what the terminal cannot show: a file name must not end a correct run."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


PathText = Annotated[str, AfterValidator(expand_home)]
"""A path in a schema."""
