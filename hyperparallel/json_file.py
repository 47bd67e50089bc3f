"""Read a JSON file as a typed model, and seal files so that a change in them is seen."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hyperparallel.cost.device import explain
from hyperparallel.errors import JsonError
from hyperparallel.io import parse_json

MAX_BYTES = 2**26
"""Largest JSON file that is read: 64 MiB, hundreds of times what a job of a few thousand layers writes."""

SEAL = "sha256"
"""Key of a file's checksum, which is over all its other keys."""

Checked = TypeVar("Checked", bound=BaseModel)


def read_at_most(path: Path, limit: int) -> bytes:
    """Read a file that is not larger than a limit.

    Args:
        path: the file.
        limit: bytes; never more are read, whatever the file is.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Read the text of a JSON file.

    Args:
        path: the file.
        limit: bytes.

    Raises:
        OSError: it cannot be read, or is larger.
        JsonError: it is no text in UTF-8; the message completes a sentence that begins with the path and a colon.
    """
    try:
        return read_at_most(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"is not JSON (byte {error.start} is not UTF-8)") from None


def read_json(path: Path, schema: type[Checked], limit: int = MAX_BYTES) -> Checked:
    """Read a file and check it; of a file with a seal also that it is what was written.

    Args:
        path: the file.
        schema: what it must be.
        limit: bytes.

    Raises:
        OSError: it cannot be read, or is larger.
        JsonError: it is not JSON, does not fit, or was changed; the message completes a sentence that begins with
            the path and a colon.
    """
    return check_json(parse_json(read_text(path, limit)), schema)


def check_json(values: Any, schema: type[Checked]) -> Checked:
    """Check what was parsed, see `read_json`.

    Args:
        values: what `parse_json` made of the file.
        schema: what it must be.

    Raises:
        JsonError: as for `read_json`.
    """
    try:
        found = schema.model_validate(values)
    except ValidationError as error:
        raise JsonError(explain(error)) from None
    if SEAL in values and values[SEAL] != digest(values):
        raise JsonError(f"it was changed after it was written: its {SEAL} is not that of its content")
    return found


def seal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum of all other keys.

    Args:
        values: as JSON holds them; an older seal is replaced.
    """
    return {**values, SEAL: digest(values)}


def digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a file says, its seal aside, however it is laid out.

    >>> digest({"b": 1, "a": [2.0]}) == digest({"a": [2.0], "b": 1, "sha256": "0"})
    True
    """
    content = {key: value for key, value in values.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
