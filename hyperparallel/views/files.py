"""Write what was drawn: all files or none, each beside its place and then renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hyperparallel.errors import HyperParallelError


def write_files(contents: Mapping[str | Path, bytes]) -> None:
    """Write files so that none is ever seen half-written, and a failure leaves no new one.

    Args:
        contents: content by path; a file that exists is replaced, a folder is not made, a device or link is refused.

    Raises:
        HyperParallelError: a path cannot be written; names it.
    """
    parts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            try:
                place = Path(path)
                if place.is_symlink() or (place.exists() and not place.is_file()):
                    # Renaming onto /dev/null would put a file in the place of the device.
                    raise OSError(None, "it is a folder" if place.is_dir() else "it is not a regular file")
                part = place.with_name(f"{place.name}.{os.getpid()}.part")
                parts[part] = place
                part.write_bytes(content)
            except (OSError, ValueError) as error:  # ValueError: no file name, or a NUL in it
                reason = getattr(error, "strerror", None) or "it is no file name"
                raise HyperParallelError(f"{str(path)!r} cannot be written ({reason}); give another path") from None
        for part, place in parts.items():
            part.replace(place)
    finally:
        for part in parts:
            with suppress(OSError, ValueError):
                part.unlink()
