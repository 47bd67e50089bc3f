"""A checkpoint on disk: its files, and finding a complete one. Needs no MindSpore.

    RUN/checkpoints/step_000120/
        checkpoint.json           step, layout, facts of the job, and in which files every tensor is
        worker_00.safetensors     what worker 0 wrote, and so on; a worker without any tensor to write has no file

A folder is given its name when all of it is on the disk; until then it is `.step_000120.part`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from hyperparallel.errors import CheckpointError, JsonError
from hyperparallel.json_file import SEAL, read_json, seal
from hyperparallel.training.checkpoint_index import Index

INDEX = "checkpoint.json"
FOLDER = "checkpoints"
"""Inside a run folder, where its checkpoints are."""

_NAME = re.compile(r"step_(\d{6,})")
_logger = logging.getLogger(__name__)


def step_name(step: int) -> str:
    """Return the name of a checkpoint's folder.

    Example:
        >>> step_name(120)
        'step_000120'
    """
    return f"step_{step:06d}"


def by_step(folder: Path) -> list[Path]:
    """List what is named like a checkpoint in a folder, newest first; a folder that is not there has none."""
    if not os.path.isdir(folder):
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")), reverse=True)


def find_checkpoint(path: str | Path) -> Path:
    """Find a complete checkpoint.

    Args:
        path: folder of a checkpoint; or of a run, whose newest complete one it is.

    Raises:
        CheckpointError: there is none, or it is not complete; says what is missing.

    Returns:
        The folder of the checkpoint.
    """
    path = Path(path)
    if not os.path.isdir(path):
        reason = "is a file" if os.path.exists(path) else "does not exist"
        raise CheckpointError(f"{path} {reason}; give a run folder, or the folder of one of its checkpoints")
    if os.path.exists(path / INDEX) or _NAME.fullmatch(path.name) or path.name.endswith(".part"):
        read_index(path)
        return path
    folder = path if path.name == FOLDER else path / FOLDER
    problems = []
    try:
        newest_first = by_step(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror}); give a run folder that can") from None
    for one in newest_first:
        try:
            read_index(one)
            return one
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"{path} has no complete checkpoint; of the newest: {problems[0]}")
    unfinished = sorted(folder.glob(".step_*")) if os.path.isdir(folder) else []
    more = f"; {unfinished[-1].name} was being written when its job ended, and is never read" if unfinished else ""
    raise CheckpointError(
        f"{path} has no checkpoint (folders step_N in {folder}){more}; give a run folder that has one, or set "
        "checkpoint.every"
    )


def read_facts(path: str | Path) -> dict[str, Any]:
    """Return what a job noted with a checkpoint, with `step`, `updates`, `schedule` and the layout.

    Args:
        path: as for `find_checkpoint`.

    Raises:
        CheckpointError: there is no complete checkpoint.
    """
    return read_index(find_checkpoint(path)).all_facts


def read_index(folder: Path) -> Index:
    """Read what a checkpoint says of itself, and check that it is of one piece and all its files are there in full.

    Args:
        folder: of the checkpoint.

    Raises:
        CheckpointError: it is not complete, or was changed; says why.
    """
    path = folder / INDEX
    advice = "give another checkpoint of the run"
    if folder.name.endswith(".part"):
        raise CheckpointError(f"{folder} is half-written: its job ended before it had its name; {advice}")
    try:
        index = read_json(path, Index)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is half-written: it has no {INDEX}; {advice}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); {advice}") from None
    except JsonError as error:
        raise CheckpointError(f"{path} is damaged or of another version: {error}; {advice}") from None
    if not index.sha256 and index.format > 1:
        raise CheckpointError(f"{path} is damaged: {SEAL!r} is missing, so a change would not be seen; {advice}")
    if not index.sha256:
        _warn_of_no_seal(path)
    if _NAME.fullmatch(folder.name) and folder.name != step_name(index.step):
        raise CheckpointError(
            f"{path} is damaged, or its folder was given another's name: it is of step {index.step}; {advice}"
        )
    for name, expected in index.bytes.items():
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            raise CheckpointError(f"{folder} is not complete: {name}: {error.strerror}; {advice}") from None
        if found != expected:
            raise CheckpointError(
                f"{folder} is not complete: {name} has {found} bytes, and had {expected} when it was written; {advice}"
            )
    return index


@cache
def _warn_of_no_seal(path: Path) -> None:
    """Say once that a file of an earlier version can only be checked against itself."""
    _logger.warning("%s was written by an earlier version, without a checksum over itself", path)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file that stays when the machine goes down.

    Args:
        path: the file; not there yet.
        tensors: any types that numpy has.
        metadata: text for its header.

    Raises:
        OSError, SafetensorError: it cannot be written, as on a full disk.
    """
    path.touch()
    mode = path.stat().st_mode & 0o777  # the library would make it readable by its owner only
    save_file({name: np.asarray(value, order="C") for name, value in tensors.items()}, path, dict(metadata))
    path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_index(folder: Path, index: Index) -> None:
    """Write `checkpoint.json`, the last file of a checkpoint."""
    with (folder / INDEX).open("w", encoding="utf-8") as file:
        json.dump(seal(index.model_dump(mode="json")), file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())


def settle(folder: Path) -> None:
    """Wait until names in a folder, such as after a rename, are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
