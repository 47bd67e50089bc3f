"""Write and read checkpoints, all workers of a job together.

The run folder must be one that every host of the job sees under the same path, such as a network disk: each worker
writes its own file into it, and worker 0 gives the folder its name when all have.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from hyperparallel.cells.slab import canonical_names
from hyperparallel.cells.state import AnyRunner, arrays_to_write, check_fits, go_on_from, load, updates_of
from hyperparallel.cells.transport import Transport
from hyperparallel.errors import CheckpointError
from hyperparallel.training.agree import share_texts, together
from hyperparallel.training.checkpoint_files import (
    FOLDER,
    by_step,
    find_checkpoint,
    read_facts,
    settle,
    step_name,
    write_index,
    write_tensors,
)
from hyperparallel.training.checkpoint_index import Cut, Entry, Facts, Index
from hyperparallel.training.stored import Stored, checksum, find_weights

__all__ = ["Checkpoints", "find_checkpoint", "load_weights", "read_facts", "restore"]

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, in `<run folder>/checkpoints`; every worker makes one of these.

    Args:
        folder: the run's, on worker 0; the others take its.
        keep: the newest that are kept, at least 1.
        transport: the job.
        last: the checkpoint that the run goes on from, if any.
    """

    def __init__(self, folder: Path | None, keep: int, transport: Transport, last: Path | None = None) -> None:
        assert keep >= 1, "a run without checkpoints needs no Checkpoints"
        own = str(Path(folder).absolute()) if transport.rank == 0 else ""
        self.folder = Path(share_texts(transport, own)[0]) / FOLDER
        self.keep, self.transport, self.last = keep, transport, last

    def save(self, runner: AnyRunner, facts: dict[str, Any]) -> Path:
        """Write a checkpoint between two steps; every worker calls this.

        Args:
            runner: its state is written.
            facts: what else the job needs to go on, see `Facts`; worker 0's are written.

        Raises:
            CheckpointError: a worker could not write, which all then raise. What was written is removed.

        Returns:
            The folder of the checkpoint.
        """
        checked = Facts.model_validate(facts)  # a mistake of ours shows on every worker alike, before any waits
        final = self.folder / step_name(runner.step_number)
        part = self.folder / f".{final.name}.part"
        self._together(part, lambda: self._begin(part), on=0)
        counts = np.zeros(self.transport.size, np.float32)

        def write() -> None:
            counts[self.transport.rank] = _write_own(part, runner)

        self._together(part, write)
        counts = self.transport.sum(counts, range(self.transport.size), "the checkpoint")
        writers = [worker for worker, count in enumerate(counts) if count]
        self._together(part, lambda: self._finish(part, final, runner, checked, writers), on=0)
        self.last = final
        return final

    def _together(self, part: Path, do: Callable[[], None], on: int | None = None) -> None:
        """Do something on every worker, or on one; where it fails, clear away and raise on all."""
        mine = on in (None, self.transport.rank)
        failed = together(self.transport, do if mine else lambda: None)
        if not failed:
            return
        if self.transport.rank == 0:
            shutil.rmtree(part, ignore_errors=True)  # what stays is never read, and goes at the next save
        worker, reason = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more workers)" if len(failed) > 1 else ""
        good = f"the last good one is intact: {self.last}" if self.last else "there is none before it"
        raise CheckpointError(
            f"no checkpoint was saved in {self.folder}: worker {worker}{more} could not write {part.name[1:-5]}: "
            f"{reason}; {good}. Make room there or lower checkpoint.keep, then go on with resume=..."
        )

    def _begin(self, part: Path) -> None:
        """Make an empty folder, and remove what an earlier job left half-written or half-deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in self.folder.glob(".step_*"):
            _delete(stale)
        part.mkdir()

    def _finish(self, part: Path, final: Path, runner: AnyRunner, facts: Facts, writers: list[int]) -> None:
        """Write the index, give the folder its name, and delete what is too old."""
        write_index(part, _index(part, runner, facts, writers))
        settle(part)
        if final.exists():  # the job went back and came here again
            final.rename(final.with_name(f".{final.name}.old"))
        part.rename(final)
        settle(self.folder)
        for old in [one for one in by_step(self.folder) if one != final][self.keep - 1 :]:
            _delete(old)
        for old in self.folder.glob(".step_*.old"):
            _delete(old)


def restore(path: str | Path, runner: AnyRunner) -> dict[str, Any]:
    """Go on from a checkpoint, of any schedule, layout and runner; every worker calls this.

    Args:
        path: as for `find_checkpoint`.
        runner: of the same model; its weights, optimizer and counters are set.

    Raises:
        CheckpointError: there is no complete checkpoint, or it is another model's; on every worker.

    Returns:
        What `read_facts` does.
    """
    index = _load(runner, lambda: find_checkpoint(path), moments=True)
    assert index is not None, "a checkpoint has an index"
    go_on_from(runner, index.step, index.updates)
    return index.all_facts


def load_weights(path: str | Path, runner: AnyRunner) -> None:
    """Start from weights of another job, without its optimizer; every worker calls this.

    Args:
        path: a file of `hyperparallel export`, a checkpoint, or a run folder.
        runner: of the same model.

    Raises:
        CheckpointError: it cannot be read, or a name is missing or one too many; on every worker.
    """
    _load(runner, lambda: find_weights(path), moments=False)


def _load(runner: AnyRunner, find: Callable[[], Path], moments: bool) -> Index | None:
    """Let worker 0 find what to read, check it on all workers before any changes its state, then read."""
    transport, found = runner.transport, []
    _all_or_none(transport, lambda: found.append(find()) if transport.rank == 0 else None)
    # A run that still goes on could give each worker another newest checkpoint.
    path = Path(share_texts(transport, str(found[0].absolute()) if found else "")[0])
    opened: list[Stored] = []
    try:
        _all_or_none(transport, lambda: opened.append(Stored(path)))
        _all_or_none(transport, lambda: check_fits(runner, opened[0]))
        _all_or_none(transport, lambda: load(runner, opened[0], moments))
    finally:
        for one in opened:
            one.close()
    return opened[0].index


def _all_or_none(transport: Transport, do: Callable[[], None]) -> None:
    """Do something on every worker; raise on all what it raises on one."""
    failed = together(transport, do)
    if failed:
        worker, reason = next(iter(failed.items()))
        raise CheckpointError(reason if transport.size == 1 else f"worker {worker}: {reason}")


def _write_own(part: Path, runner: AnyRunner) -> int:
    """Write what this worker has to; return the number of tensors."""
    own = arrays_to_write(runner)
    if own:
        cuts = {
            name: {"axis": shard.axis, "blocks": shard.blocks} for name, (_, shard) in own.items() if shard is not None
        }
        sums = {name: checksum(value) for name, (value, _) in own.items()}
        # One entry: the library orders several at random, and equal states would not make equal files.
        metadata = {"parts": json.dumps({"cuts": cuts, "crc32": sums})}
        tensors = {name: value for name, (value, _) in own.items()}
        write_tensors(part / _file(runner.transport.rank), tensors, metadata)
    return len(own)


def _index(part: Path, runner: AnyRunner, facts: Facts, writers: list[int]) -> Index:
    """Gather from the headers of all files where each tensor is."""
    entries: dict[str, Entry] = {}
    for file in map(_file, writers):  # by worker, so parts come in the order of their shards
        with safe_open(part / file, framework="numpy") as opened:
            parts = json.loads(opened.metadata()["parts"])
            cuts = parts["cuts"]
            for name, crc32 in parts["crc32"].items():
                before = entries.get(name)
                shape, cut = list(opened.get_slice(name).get_shape()), None
                if name in cuts:
                    cut = Cut(**cuts[name])
                    shape[cut.axis] = sum(cut.blocks)
                assert before is None or cut is not None, f"{name} was written twice"
                files, checks = (before.files, before.crc32) if before else ((), ())
                entries[name] = Entry(shape=shape, files=(*files, file), crc32=(*checks, crc32), cut=cut)
    return Index(
        step=runner.step_number,
        updates=updates_of(runner),
        schedule=str(runner.plan.schedule),
        ranks=runner.topology.ranks,
        data_parallel=runner.topology.data_parallel,
        tensor_parallel=runner.topology.tensor_parallel,
        facts=facts,
        tied=canonical_names(runner.layers),
        bytes={file: (part / file).stat().st_size for file in map(_file, writers)},
        tensors=dict(sorted(entries.items())),
    )


def _file(worker: int) -> str:
    return f"worker_{worker:02d}.safetensors"


def _delete(old: Path) -> None:
    """Delete a checkpoint, under another name, so that none is ever half there; the job goes on if it stays."""
    try:
        hidden = old if old.name.startswith(".") else old.rename(old.with_name(f".{old.name}.old"))
        shutil.rmtree(hidden)
    except OSError as error:
        _logger.warning("the old checkpoint %s could not be deleted: %s", old, error.strerror)
