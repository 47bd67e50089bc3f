"""Byte messages between the ranks of a job on CPU, over TCP.

MindSpore's own CPU receive waits in a busy loop, takes 1.5 ms even for a message that came long ago, and holds up every
operation that is called after it. Here a thread reads what comes into memory: a send never waits for its receive, a
receive waits in the kernel, and one that comes late finds its message there.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence

import numpy as np

from hyperparallel.errors import TransportError

_SIZE = struct.Struct("<Q")
_HELLO = struct.Struct("<8s4sI")  # magic, token of the job, rank
_MAGIC, _SUM = b"HYPERTCP", b"THE SUM."
_NUMBERS = 10  # of a rank in the table that is exchanged: 4 of its address, 2 of its port, 4 of the token


class Wires:
    """One wire from every rank to every other, opened when first used.

    Args:
        rank: this process.
        size: processes of the job.
        add: sums a float32 array over all ranks of the job; all of them construct their wires together.
    """

    def __init__(self, rank: int, size: int, add: Callable[[np.ndarray], np.ndarray]):
        self.rank = rank
        self._came = [queue.SimpleQueue() for _ in range(size)]  # by sender; made now, since threads share them
        self._out: dict[int, socket.socket] = {}
        self._listener = socket.create_server((_own_address(), 0), backlog=size)
        address, port = self._listener.getsockname()
        table = np.zeros((size, _NUMBERS), np.float32)
        # Small numbers, since a float32 carries only those exactly.
        table[rank] = [*socket.inet_aton(address), *divmod(port, 256), *(os.urandom(4) if rank == 0 else bytes(4))]
        numbers = add(table).astype(np.uint8)
        self._addresses = [(socket.inet_ntoa(bytes(row[:4])), row[4] * 256 + int(row[5])) for row in numbers.tolist()]
        self._token = bytes(numbers[0, 6:])
        _in_background(self._accept)

    def send(self, peer: int, message: bytes) -> None:
        """Send to another rank; returns when the system has taken the message over.

        Raises:
            TransportError: the other rank has gone.
        """
        try:
            if peer not in self._out:
                self._out[peer] = self._connect(peer)
            self._out[peer].sendall(_SIZE.pack(len(message)) + message)
        except OSError as error:
            raise TransportError(f"message from rank {self.rank} to rank {peer} was not sent: {error}") from None

    def receive(self, peer: int) -> bytearray:
        """Wait for the next message of another rank.

        Raises:
            TransportError: the other rank has gone.
        """
        message = self._came[peer].get()
        if message is None:
            raise TransportError(f"rank {self.rank} waits for a message of rank {peer}, which has gone")
        return message

    def sum(self, values: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
        """Sum an array over some ranks, in the order of the ranks; every one gets the same bits.

        Args:
            values: float32, the same shape on all of them; small, since one rank adds up what the others send.
            ranks: members, this rank among them; all of them call this when they have received what was sent before.

        Raises:
            TransportError: what came is no term of such a sum.
        """
        first, *others = sorted(ranks)
        if self.rank != first:
            self.send(first, _SUM + values.astype(np.float32).tobytes())
            return self._term(first, values)
        total = values.astype(np.float32)
        for peer in others:
            total = total + self._term(peer, values)
        for peer in others:
            self.send(peer, _SUM + total.tobytes())
        return total

    def _term(self, peer: int, like: np.ndarray) -> np.ndarray:
        message = self.receive(peer)
        if message[: len(_SUM)] != _SUM or len(message) != len(_SUM) + 4 * like.size:
            raise TransportError(
                f"rank {self.rank} waits for {like.size} numbers of a sum from rank {peer}, but got a message of "
                f"{len(message)} bytes that starts with {bytes(message[:8])!r}; both ranks must run one plan"
            )
        return np.frombuffer(message, np.float32, offset=len(_SUM)).reshape(like.shape)

    def _connect(self, peer: int) -> socket.socket:
        wire = socket.create_connection(self._addresses[peer])
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.sendall(_HELLO.pack(_MAGIC, self._token, self.rank))
        return wire

    def _accept(self) -> None:
        while True:
            wire, _ = self._listener.accept()
            _in_background(self._read, wire)

    def _read(self, wire: socket.socket) -> None:
        """Queue what comes over one wire until its sender has gone; a stranger's is closed."""
        with wire:
            hello = _exactly(wire, _HELLO.size)
            if hello is None:
                return
            magic, token, peer = _HELLO.unpack(hello)
            if (magic, token) != (_MAGIC, self._token) or peer >= len(self._came):
                return
            came = self._came[peer]
            while (head := _exactly(wire, _SIZE.size)) is not None:
                message = _exactly(wire, *_SIZE.unpack(head))
                came.put(message)
                if message is None:
                    return
            came.put(None)


def _exactly(wire: socket.socket, size: int) -> bytearray | None:
    """Read so many bytes; None if the other end goes away before."""
    data = bytearray(size)
    view = memoryview(data)
    try:
        while view:
            count = wire.recv_into(view)
            if count == 0:
                return None
            view = view[count:]
    except OSError:
        return None
    return data


def _own_address() -> str:
    """Return the address of this host on the way to the job's scheduler; loopback when all run on one host."""
    scheduler = os.environ.get("MS_SCHED_HOST", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((scheduler, 9))  # sends nothing
        return probe.getsockname()[0]


def _in_background(run: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()
