"""Read the tensors of a checkpoint or of one merged file, one by one. Needs no MindSpore."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from hyperparallel.errors import CheckpointError
from hyperparallel.tensors import Shard, join_parameter, slice_parameter
from hyperparallel.training.checkpoint_files import find_checkpoint, read_index
from hyperparallel.training.checkpoint_index import Entry, Index


class Stored:
    """Read tensors one by one; a context manager that closes the files.

    Args:
        path: of a merged file, or the folder of a checkpoint.

    Raises:
        CheckpointError: it cannot be read, or is not complete.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.index: Index | None = None
        self._files: dict[str, Any] = {}
        self._closing = ExitStack()
        if os.path.isfile(path):
            self._folder = path.parent
            opened = self._open(path.name)
            self._entries = {
                name: Entry(shape=opened.get_slice(name).get_shape(), files=(path.name,), crc32=())
                for name in opened.keys()  # noqa: SIM118 (it is no dictionary)
            }
        else:
            self._folder, self.index = path, read_index(path)
            self._entries = dict(self.index.tensors)

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._closing.close()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of the whole tensor."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str, shard: Shard | None = None, index: int = 0, size: int = 1) -> np.ndarray:
        """Read a tensor, or a part of it.

        Args:
            name: of the tensor.
            shard: how the part is cut out; None: the whole.
            index: which part, 0 .. size - 1.
            size: number of parts.

        Raises:
            CheckpointError: the file is damaged, or holds a type that numpy has not.
        """
        entry = self._entries[name]
        if shard is not None and entry.cut is not None and entry.cut.shard == shard and len(entry.files) == size:
            return self._read(name, entry, index)
        parts = [self._read(name, entry, one) for one in range(len(entry.files))]
        whole = parts[0] if entry.cut is None else join_parameter(parts, entry.cut.shard)
        return whole if shard is None else slice_parameter(whole, shard, index, size)

    def _read(self, name: str, entry: Entry, part: int) -> np.ndarray:
        """Read a tensor of one file."""
        file = entry.files[part]
        path = self._folder / file
        try:
            value = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: {name} cannot be read ({error}); give another checkpoint") from None
        except TypeError as error:  # numpy has no bfloat16
            raise CheckpointError(f"{path}: {name} cannot be read ({error}); convert it to float32") from None
        if value.shape != entry.part_shape:
            raise CheckpointError(
                f"{path}: {name} has the shape {value.shape}, and {entry.part_shape} was written; give another one"
            )
        if entry.crc32 and checksum(value) != entry.crc32[part]:
            raise CheckpointError(f"{path}: {name} is not what was written: its checksum differs; give another one")
        return value

    def _open(self, file: str) -> Any:
        """Open a file when the first tensor of it is asked for."""
        if file not in self._files:
            path = self._folder / file
            try:
                self._files[file] = self._closing.enter_context(safe_open(path, framework="numpy"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read ({error}); give a complete .safetensors file") from None
        return self._files[file]


def find_weights(path: str | Path) -> Path:
    """Find what weights can come from.

    Args:
        path: a `.safetensors` file of `hyperparallel export`, or as for `find_checkpoint`.

    Raises:
        CheckpointError: there is none, or it is not complete.

    Returns:
        The file, or the folder of a checkpoint.
    """
    path = Path(path)
    if not os.path.isfile(path):
        return find_checkpoint(path)
    with Stored(path):
        return path


def checksum(value: np.ndarray) -> int:
    """Return the CRC-32 of a tensor's bytes."""
    return zlib.crc32(np.asarray(value, order="C"))
