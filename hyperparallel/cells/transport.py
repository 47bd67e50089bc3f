"""Messages between ranks and reductions over groups: the only file that talks to MindSpore's communication.

A message is one byte tensor: header (magic, step, stage, kind, micro-batch, shapes and types), payload, trailer.
The receiver checks all of it, so a message that is not the awaited one, or was not filled, names both ends. A channel
(one sender, one receiver) starts with room for small messages; one that does not fit is announced by its header and
follows, and both ends widen the channel by the same rule, so after the first step each message is a single one.
On CPU messages and sums go over `wires.py` instead, where a waiting rank leaves the core to the others.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from hyperparallel.algebra import Action
from hyperparallel.algebra.program import SEND_B, SEND_F, Piece, micro_batch
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.source_file import remove_sources
from hyperparallel.cells.tensor_parallel import WHOLE, TensorParallel
from hyperparallel.cells.wires import Wires
from hyperparallel.errors import ConfigError, TransportError
from hyperparallel.variables import JOB_MARK

# magic, step, stage, kind, micro-batch, its piece from 1 (0: whole), number of arrays, payload bytes
_HEAD = struct.Struct("<8sIIIIIIQ")
_ARRAY = struct.Struct("<8sI8Q")  # dtype, number of dimensions, dimensions
_MAGIC, _FOLLOWS, _END = b"HYPERPAR", b"FOLLOWS!", b"THE END."
_KINDS = (SEND_F, SEND_B)
_ROOM = 4096  # bytes a channel starts with


class Tag(NamedTuple):
    """What a message is: the SEND action that made it, and the step."""

    action: Action
    step: int

    def __str__(self) -> str:
        return f"{self.action} of step {self.step}"


class Transport:
    """Point-to-point messages and sums among the ranks of one job.

    Args:
        rank: this process, 0..size-1.
        size: number of processes; 1 needs no communication at all.
        timeout_s: seconds > 0 that a rank waits for another before it names it and gives up; on CPU, elsewhere it is
            MindSpore that waits.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout_s: float = 600.0):
        self.rank, self.size, self._timeout_s = rank, size, timeout_s
        self._room: dict[tuple[int, int], int] = defaultdict(lambda: _ROOM)
        self._wires: Wires | None = None  # on CPU; elsewhere MindSpore carries the messages
        self._in_flight: list[tuple[object, Tensor]] = []
        self._groups: dict[tuple[int, ...], str] = {}
        self._reduces: dict[str, ops.AllReduce] = {}

    @property
    def timeout_s(self) -> float:
        """Seconds that this rank waits for another; may be changed."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        self._timeout_s = seconds
        if self._wires:
            self._wires.timeout_s = seconds

    @classmethod
    def start(cls, timeout_s: float = 600.0) -> Transport:
        """Join the job that `msrun` started this process in; alone, return a transport of size 1.

        Args:
            timeout_s: seconds > 0 that a rank waits for another (see above).

        Raises:
            TransportError: another rank has gone meanwhile.
        """
        ms.set_context(mode=ms.PYNATIVE_MODE)
        if "MS_ROLE" not in os.environ:
            return cls(timeout_s=timeout_s)
        from mindspore import communication
        from mindspore._c_expression import CollectiveManager

        communication.init()
        rank, size = communication.get_rank(), communication.get_group_size()
        # Send and receive look this name up; on CPU nobody else creates it (design, section 6).
        CollectiveManager.get_instance().create_group("hccl_world_group", list(range(size)))
        transport = cls(rank, size, timeout_s)
        if size > 1 and ms.get_context("device_target") == "CPU":
            transport._wires = Wires(rank, size, lambda table: transport.sum(table, range(size)), timeout_s)
        return transport

    def leave(self) -> None:
        """End this rank well: the last thing it does, once all ranks of the job have come here.

        On CPU, in a job of `launch.start_job`, the process ends here with exit code 0. MindSpore's own way out lets a
        thread read from connections that another has deleted, so now and then a rank that had done everything ended by
        SIGSEGV, and its job with it. The starter ends the scheduler, which would wait to hear from each rank. Elsewhere
        this returns, and the process ends as any other.

        Raises:
            TransportError: a rank has gone before it came here, or does not come for `timeout_s`.
        """
        self.sum(np.zeros(1, np.float32), range(self.size), "nothing, at the end of the job")
        if JOB_MARK in os.environ and ms.get_context("device_target") == "CPU":
            remove_sources()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    @classmethod
    def simulate(cls) -> Transport:
        """Be one worker of a dry run, in graph mode, with its rank and size from the environment."""
        from mindspore import communication

        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_device("Ascend", 0)
        communication.init()
        return cls(communication.get_rank(), communication.get_group_size())

    def place(self, topology: Topology) -> tuple[int, int, int]:
        """Return where this worker sits: (pipeline rank, replica, shard).

        Args:
            topology: P x D x T.

        Raises:
            ConfigError: the job has another number of workers.
        """
        if self.size != topology.workers:
            raise ConfigError(
                f"the plan has {topology.ranks} ranks x {topology.data_parallel} replicas x {topology.tensor_parallel} "
                f"shards (P x D x T) = {topology.workers} workers, the job has {self.size}; "
                f"start it with msrun --worker_num={topology.workers}"
            )
        return topology.coordinates(self.rank)

    def tensor_parallel(self, topology: Topology) -> TensorParallel:
        """Create the group of the workers that share this worker's stage; all T of them call this.

        Args:
            topology: P x D x T.

        Raises:
            ConfigError: the job has another number of workers.

        Returns:
            What the layers need to split themselves.
        """
        _, _, shard = self.place(topology)
        if topology.tensor_parallel == 1:
            return WHOLE
        return TensorParallel(topology.tensor_parallel, shard, self.group(topology.shards(self.rank)))

    def send(self, peer: int, tag: Tag, arrays: Sequence[np.ndarray]) -> None:
        """Send arrays to another rank; returns at once (buffered).

        Args:
            peer: receiving rank.
            tag: what this message is.
            arrays: at most 8 dimensions each; any numpy type.

        Raises:
            TransportError: the other rank has gone or does not answer.
        """
        message = _pack(tag, arrays)
        if self._wires:
            self._wires.send(peer, message, what=tag)
            return
        channel = (self.rank, peer)
        if len(message) > self._room[channel]:
            announcement = _HEAD.pack(_FOLLOWS, tag.step, *_describe(tag), len(arrays), len(message))
            self._isend(peer, announcement)
            self._room[channel] = _widened(len(message))
        self._isend(peer, message)

    def receive(self, peer: int, tag: Tag) -> list[np.ndarray]:
        """Wait for the next message of a channel.

        Args:
            peer: sending rank.
            tag: what it must be.

        Raises:
            TransportError: it is another message, or it is not complete; the other rank has gone, or sends nothing for
                `timeout_s`. Names both ends and what was awaited.

        Returns:
            The arrays as sent.
        """
        if self._wires:
            return self._unpack(peer, tag, self._wires.receive(peer, tag))
        channel = (peer, self.rank)
        data = self._recv(peer, self._room[channel])
        magic, *_, size = _HEAD.unpack_from(data)
        if magic == _FOLLOWS:
            self._room[channel] = _widened(size)
            data = self._recv(peer, size)
        return self._unpack(peer, tag, data)

    def sum(self, values: np.ndarray, ranks: Sequence[int], what: str = "numbers") -> np.ndarray:
        """Sum an array over some ranks, which all call this; every one gets the same bits.

        Args:
            values: float32 array of any shape, the same shape on all of them.
            ranks: members, this rank among them.
            what: what is summed, for errors; such as "the losses of step 3".

        Raises:
            TransportError: a member has gone, or does not answer for `timeout_s`.
        """
        if len(ranks) == 1:
            assert ranks[0] == self.rank, f"rank {self.rank} is not in {tuple(ranks)}"
            return values
        if self._wires:
            return self._wires.sum(values, ranks, what)
        group = self.group(ranks)
        if group not in self._reduces:
            self._reduces[group] = ops.AllReduce(group=group)
        return self._reduces[group](Tensor(values)).asnumpy()

    def group(self, ranks: Sequence[int]) -> str:
        """Return the name of the communication group of some ranks, created when first asked for.

        Args:
            ranks: two or more members, this rank among them; all of them call this, and no other rank does.
        """
        key = tuple(sorted(ranks))
        assert self.rank in key and len(key) > 1, f"rank {self.rank} has no group {key}"
        if key not in self._groups:
            self._groups[key] = self._create_group(key)
        return self._groups[key]

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The groups that were asked for: name -> members."""
        return {name: key for key, name in self._groups.items()}

    def flush(self) -> None:
        """Forget the buffers of sends; call when all ranks are known to have received (after a reduction)."""
        for handle, _ in self._in_flight:
            handle.wait()
        self._in_flight.clear()

    def _create_group(self, key: tuple[int, ...]) -> str:
        from mindspore import communication

        if len(key) == self.size:
            return communication.GlobalComm.WORLD_COMM_GROUP
        name = "hyperparallel-" + "-".join(map(str, key))
        communication.create_group(name, list(key))
        return name

    def _isend(self, peer: int, data: bytes) -> None:
        from mindspore.mint import distributed

        tensor = Tensor(np.frombuffer(data, np.uint8))
        self._in_flight.append((distributed.isend(tensor, peer), tensor))

    def _recv(self, peer: int, room: int) -> bytes:
        from mindspore.mint import distributed

        tensor = Tensor(np.zeros(room, np.uint8))
        distributed.recv(tensor, peer)
        return tensor.asnumpy().tobytes()

    def _unpack(self, peer: int, tag: Tag, data: bytes | bytearray) -> list[np.ndarray]:
        """Check a message against the tag that was awaited and take it apart."""
        ends = f"from rank {peer} to rank {self.rank}, step {tag.step}, {tag.action}"
        if len(data) < _HEAD.size:
            raise TransportError(f"message {ends}: is cut short; {len(data)} bytes hold no header")
        magic, step, stage, kind, mb, piece, count, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or kind >= len(_KINDS):
            raise TransportError(f"message {ends}: was not filled by its sender (starts with {magic!r})")
        got = Tag(Action(stage, _KINDS[kind], Piece(mb, piece - 1) if piece else mb), step)
        if got != tag:
            raise TransportError(
                f"message {ends}: got {got.action} of step {got.step} instead; both ranks must run one plan"
            )
        offset = _HEAD.size + count * _ARRAY.size
        end = offset + size
        if data[end : end + len(_END)] != _END:
            raise TransportError(f"message {ends}: is cut short; {size} bytes were announced")
        arrays = []
        for index in range(count):
            dtype, dims, *shape = _ARRAY.unpack_from(data, _HEAD.size + index * _ARRAY.size)
            kind_ = np.dtype(dtype.rstrip(b"\0").decode())
            number = int(np.prod(shape[:dims]))
            arrays.append(np.frombuffer(data, kind_, number, offset).reshape(shape[:dims]))
            offset += number * kind_.itemsize
        return arrays


def _describe(tag: Tag) -> tuple[int, int, int, int]:
    stage, kind, unit = tag.action
    return stage, _KINDS.index(kind), micro_batch(unit), unit.index + 1 if isinstance(unit, Piece) else 0


def _widened(size: int) -> int:
    """Both ends compute the same new room from the size of the message that did not fit."""
    return 1 << (size - 1).bit_length()


def _pack(tag: Tag, arrays: Sequence[np.ndarray]) -> bytes:
    payload = [np.asarray(array, order="C") for array in arrays]  # ascontiguousarray makes 0-d arrays 1-d
    parts = [_HEAD.pack(_MAGIC, tag.step, *_describe(tag), len(payload), sum(array.nbytes for array in payload))]
    for array in payload:
        shape = array.shape + (0,) * (8 - array.ndim)
        parts.append(_ARRAY.pack(array.dtype.str.encode(), array.ndim, *shape))
    return b"".join([*parts, *(array.tobytes() for array in payload), _END])
