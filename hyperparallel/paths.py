"""Paths that a user writes, in a file or on the command line."""

from __future__ import annotations

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
    if not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ValueError(f"there is no home folder of {text.split('/')[0]!r}; write ./{text} if it is a name") from None


PathText = Annotated[str, AfterValidator(expand_home)]
"""A path in a schema."""
