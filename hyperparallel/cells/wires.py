"""Byte messages between the ranks of a job on CPU, over TCP.

MindSpore's own CPU receive waits in a busy loop, takes 1.5 ms even for a message that came long ago, and holds up every
operation that is called after it. Here a thread reads what comes into memory: a send never waits for its receive, a
receive waits in the kernel, and one that comes late finds its message there. MindSpore's all-reduce takes a multiple of
the time of a sum here, fails when a rank is 30 s late, and keeps a process from ending when another has gone.

Nobody waits for ever: all wires are open from the start, so the end of a process is seen at once by those that wait for
it, and one that does not answer is named after `timeout_s`.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence

import numpy as np

from hyperparallel.errors import GONE, SILENT, TransportError

_SIZE = struct.Struct("<Q")
_HELLO = struct.Struct("<8s4sI")  # magic, token of the job, rank
_MAGIC, _SUM = b"HYPERTCP", b"THE SUM."
_NUMBERS = 10  # of a rank in the table that is exchanged: 4 of its address, 2 of its port, 4 of the token
_SMALL = 1 << 16  # bytes of a message sent in one piece, and of a sum that one rank adds up


class Wires:
    """One wire from every rank to every other.

    Args:
        rank: this process.
        size: processes of the job.
        add: sums a float32 array over all ranks of the job; all of them construct their wires together.
        timeout_s: seconds > 0 that a rank waits for another; may be changed later.

    Raises:
        TransportError: another rank has gone, or does not open its wires in time.
    """

    def __init__(self, rank: int, size: int, add: Callable[[np.ndarray], np.ndarray], timeout_s: float = 600.0):
        self.rank, self.timeout_s = rank, timeout_s
        self._came = [queue.SimpleQueue() for _ in range(size)]  # by sender; made now, since threads share them
        self._opened = threading.Semaphore(0)  # counts the wires that came in
        self._listener = socket.create_server((_own_address(), 0), backlog=size)
        address, port = self._listener.getsockname()
        table = np.zeros((size, _NUMBERS), np.float32)
        # Small numbers, since a float32 carries only those exactly.
        table[rank] = [*socket.inet_aton(address), *divmod(port, 256), *(os.urandom(4) if rank == 0 else bytes(4))]
        numbers = add(table).astype(np.uint8)
        self._addresses = [(socket.inet_ntoa(bytes(row[:4])), row[4] * 256 + int(row[5])) for row in numbers.tolist()]
        self._token = bytes(numbers[0, 6:])
        _in_background(self._accept)
        others = [peer for peer in range(size) if peer != rank]
        self._out = {peer: self._connect(peer) for peer in others}
        for _ in others:
            if not self._opened.acquire(timeout=timeout_s):
                raise TransportError(f"rank {rank} has waited {timeout_s:g} s for the wires of the other ranks")

    def send(self, peer: int, *parts: bytes | np.ndarray, what: object = "a message") -> None:
        """Send a message to another rank; returns when the system has taken it over.

        Args:
            peer: receiving rank.
            parts: the bytes of the message, in order.
            what: the message, for errors.

        Raises:
            TransportError: the other rank has gone, or takes nothing for `timeout_s`.
        """
        size = sum(map(len, parts))
        pieces = (_SIZE.pack(size), *parts)
        wire = self._out[peer]
        try:
            wire.settimeout(self.timeout_s)
            for piece in pieces if size > _SMALL else (b"".join(pieces),):
                wire.sendall(piece)
        except TimeoutError:
            raise TransportError(self._waited(f"to send {what} to", peer)) from None
        except OSError as error:
            raise TransportError(f"rank {self.rank} sends {what} to rank {peer}, {GONE} ({error.strerror})") from None

    def receive(self, peer: int, what: object = "a message") -> bytearray:
        """Wait for the next message of another rank.

        Args:
            peer: sending rank.
            what: the message, for errors.

        Raises:
            TransportError: the other rank has gone, or sends nothing for `timeout_s`.
        """
        try:
            message = self._came[peer].get(timeout=self.timeout_s)
        except queue.Empty:
            raise TransportError(self._waited(f"for {what} from", peer)) from None
        if message is None:
            self._came[peer].put(None)  # for whoever asks again
            raise TransportError(f"rank {self.rank} waits for {what} from rank {peer}, {GONE}")
        return message

    def sum(self, values: np.ndarray, ranks: Sequence[int], what: str = "numbers") -> np.ndarray:
        """Sum an array over some ranks, in the order of the ranks; every one gets the same bits.

        Args:
            values: float32, the same shape on all of them.
            ranks: members, this rank among them; all of them call this when they have received what was sent before.
            what: what is summed, for errors.

        Raises:
            TransportError: what came is no term of such a sum; a member has gone, or does not answer.
        """
        members = sorted(ranks)
        what = f"the sum of {what} over ranks {', '.join(map(str, members))}"
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        # One member adds up what is small; of what is large every one adds up a part.
        adders = members if flat.nbytes > _SMALL else members[:1]
        ends = [flat.size * count // len(adders) for count in range(len(adders) + 1)]
        parts = {adder: flat[ends[index] : ends[index + 1]] for index, adder in enumerate(adders)}
        for adder, part in parts.items():
            if adder != self.rank:
                self.send(adder, _SUM, part.view(np.uint8), what=what)
        if self.rank in parts:
            total = parts[self.rank] = self._add_up(parts[self.rank], members, what)
            for peer in members:
                if peer != self.rank:
                    self.send(peer, _SUM, total.view(np.uint8), what=what)
        sums = [part if adder == self.rank else self._term(adder, part.size, what) for adder, part in parts.items()]
        return (sums[0] if len(sums) == 1 else np.concatenate(sums)).reshape(values.shape)

    def _add_up(self, own: np.ndarray, members: Sequence[int], what: str) -> np.ndarray:
        """Add the terms of all members in one order."""
        terms = (own if peer == self.rank else self._term(peer, own.size, what) for peer in members)
        total = next(terms).copy()
        for term in terms:
            total += term
        return total

    def _term(self, peer: int, size: int, what: str) -> np.ndarray:
        message = self.receive(peer, what)
        if message[: len(_SUM)] != _SUM or len(message) != len(_SUM) + 4 * size:
            raise TransportError(
                f"rank {self.rank} waits for {size} numbers of {what} from rank {peer}, but got a message of "
                f"{len(message)} bytes that starts with {bytes(message[:8])!r}; both ranks must run one plan"
            )
        return np.frombuffer(message, np.float32, offset=len(_SUM))

    def _waited(self, what: str, peer: int) -> str:
        return (
            f"rank {self.rank} has waited {self.timeout_s:g} s {what} rank {peer}, {SILENT}; look at its log "
            "(run.timeout_s sets how long to wait)"
        )

    def _connect(self, peer: int) -> socket.socket:
        try:
            wire = socket.create_connection(self._addresses[peer], timeout=self.timeout_s)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.sendall(_HELLO.pack(_MAGIC, self._token, self.rank))
        except OSError as error:
            raise TransportError(f"rank {self.rank} opens a wire to rank {peer}, {GONE} ({error})") from None
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
            self._opened.release()
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
