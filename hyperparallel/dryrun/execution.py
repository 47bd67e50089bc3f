"""The back end's order of execution (level 1): kernels, streams, and the events by which streams wait.

There is no guesswork left in it: `execute_order/*.csv` is the order in which kernels are launched.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hyperparallel.dryrun.ir_order import numbers_in
from hyperparallel.dryrun.ir_walk import P2P
from hyperparallel.errors import DryRunError

_FILES = {
    "execute_order.csv": ("index", "node_name", "stream_id", "event_id"),
    "comm_execute_order.csv": (
        *("index", "primitive", "group", "comm_rank", "src_rank", "dest_rank"),
        *("input_shape", "input_type", "output_shape", "output_type"),
    ),
}


class Kernel(NamedTuple):
    """One line of the order of execution.

    Args:
        index: its number in the file.
        op: "Send", "Receive", "AllReduce", "MatMul", ..., "StreamSend" (records an event), "StreamRecv" (makes its
            stream wait for one).
        scope: "Default/stage-Stage/MatMul-op0".
        stream: which stream it runs on.
        event: what StreamSend records and StreamRecv waits for.
        group: communication group.
        ranks: global ranks of that group.
        peer: global rank at the other end of Send and Receive.
        shape: what is communicated, with its type.
        backward: made by automatic differentiation.
    """

    index: int
    op: str
    scope: str
    stream: int
    event: int | None = None
    group: str | None = None
    ranks: tuple[int, ...] = ()
    peer: int | None = None
    shape: str = ""
    backward: bool = False

    def __str__(self) -> str:
        peer = "" if self.peer is None else f"  peer {self.peer}"
        event = "" if self.event is None else f"  event {self.event}"
        group = "" if self.group is None else f"  group {self.group[:24]}{list(self.ranks)}"
        return f"{self.index:4}  stream {self.stream}  {self.op:13}{peer}{event}{group}  {self.scope}"


def read_execution(folder: Path | str) -> list[Kernel]:
    """Read the order of execution of one rank.

    Args:
        folder: its `rank_R` after a run at level 1.

    Raises:
        DryRunError: a file or a column is missing.

    Returns:
        Its kernels in the order of launching.
    """
    folder = Path(folder) / "execute_order"
    comm = {row["index"]: row for row in _rows(folder, "comm_execute_order.csv")}
    return [_kernel(row, comm.get(row["index"])) for row in _rows(folder, "execute_order.csv")]


def check_execution(ranks: Sequence[Path | str] | Mapping[int, Sequence[Kernel]]) -> list[str]:
    """Play the streams of all ranks against each other.

    A stream runs its kernels in order. A communication kernel completes when its counterpart is at the head of a
    stream too (the whole group's, for a collective); the n-th Send from a to b in a group goes with b's n-th
    Receive from a in it. Nothing is buffered.

    Args:
        ranks: the `rank_R` folders of all ranks, or rank -> kernels.

    Raises:
        DryRunError: a folder without an order of execution, or not named `rank_R`.

    Returns:
        Problems, one line each; empty when every stream of every rank reaches its end.
    """
    if not isinstance(ranks, Mapping):
        ranks = {_rank_of(Path(folder)): read_execution(folder) for folder in ranks}
    meetings = _meetings(ranks)
    return [*_mismatches(meetings), *_Play(ranks, meetings).run()]


class _Key(NamedTuple):
    """What the kernels of one communication have in common: the n-th of its kind."""

    op: str  # "message" for Send and Receive
    ranks: tuple[int, ...]
    ends: tuple[int, ...]  # sender and receiver of a message
    number: int

    @property
    def size(self) -> int:
        """How many kernels take part."""
        return len(self.ends) or len(self.ranks)


_Meetings = dict[_Key, list[tuple[int, Kernel]]]


def _meetings(ranks: Mapping[int, Sequence[Kernel]]) -> _Meetings:
    """List, for every communication, the kernels that take part, with their ranks."""
    found: _Meetings = defaultdict(list)
    for rank, kernels in ranks.items():
        count: dict[tuple, int] = defaultdict(int)
        for kernel in kernels:
            if kernel.group is None:
                continue
            what = (kernel.op, kernel.ranks, ())
            if kernel.op in P2P:
                ends = (rank, kernel.peer) if kernel.op == "Send" else (kernel.peer, rank)
                what = ("message", kernel.ranks, ends)
            found[_Key(*what, count[what])].append((rank, kernel))
            count[what] += 1
    return found


def _mismatches(meetings: _Meetings) -> list[str]:
    problems = []
    for key, members in meetings.items():
        (rank, kernel), *rest = members
        if len(members) != key.size:
            problems.append(f"no counterpart: rank {rank} {kernel}")
        elif key.ends and rest[0][1].shape != kernel.shape:
            other_rank, other = rest[0]
            problems.append(
                f"shapes differ: rank {rank} {kernel} ({kernel.shape}) / rank {other_rank} {other} ({other.shape})"
            )
    return problems


class _Play:
    """The state of the play: how far every stream is, and which kernels are done."""

    def __init__(self, ranks: Mapping[int, Sequence[Kernel]], meetings: _Meetings) -> None:
        self.key_of = {(rank, kernel.index): key for key, members in meetings.items() for rank, kernel in members}
        self.streams: dict[tuple[int, int], list[Kernel]] = defaultdict(list)
        self.record_of: dict[tuple[int, int], int | None] = {}
        for rank, kernels in ranks.items():
            recorded: dict[int | None, int] = {}
            for kernel in kernels:
                self.streams[rank, kernel.stream].append(kernel)
                if kernel.op == "StreamSend":
                    recorded[kernel.event] = kernel.index
                elif kernel.op == "StreamRecv":
                    # A wait is for the latest record that was launched before it.
                    self.record_of[rank, kernel.index] = recorded.get(kernel.event)
        self.at = dict.fromkeys(self.streams, 0)
        self.done: set[tuple[int, int]] = set()
        self.arrived: dict[_Key, set[tuple[int, int]]] = defaultdict(set)

    def run(self) -> list[str]:
        """Advance all streams as far as they go; list those that stop before their end."""
        moved = True
        while moved:
            moved = False
            for (rank, stream), kernels in self.streams.items():
                while self.at[rank, stream] < len(kernels) and self._passes(rank, kernels[self.at[rank, stream]]):
                    self.done.add((rank, kernels[self.at[rank, stream]].index))
                    self.at[rank, stream] += 1
                    moved = True
        return [
            f"rank {rank}, stream {stream} is stuck: {kernels[self.at[rank, stream]]}"
            for (rank, stream), kernels in sorted(self.streams.items())
            if self.at[rank, stream] < len(kernels)
        ]

    def _passes(self, rank: int, kernel: Kernel) -> bool:
        """Tell whether the kernel at the head of its stream can complete."""
        if kernel.op == "StreamRecv":
            record = self.record_of[rank, kernel.index]
            return record is None or (rank, record) in self.done
        if kernel.group is None or (rank, kernel.index) in self.done:
            return True
        key = self.key_of[rank, kernel.index]
        self.arrived[key].add((rank, kernel.index))
        if len(self.arrived[key]) < key.size:
            return False
        self.done |= self.arrived[key]
        return True


def _kernel(row: Mapping[str, str], about: Mapping[str, str] | None) -> Kernel:
    scope = row["node_name"]
    kernel = Kernel(
        index=int(row["index"]),
        op=re.sub(r"-op\d+$", "", scope.rsplit("/", 1)[-1]),
        scope=scope,
        stream=int(row["stream_id"]),
        event=int(row["event_id"]) if row["event_id"] else None,
        backward="Gradients/" in scope,
    )
    if about is None:
        return kernel
    op = about["primitive"]
    end = {"Send": about["dest_rank"], "Receive": about["src_rank"]}.get(op)  # global ranks here, unlike in the graph
    side = "input" if op == "Send" else "output"
    return kernel._replace(
        op=op,
        group=about["group"],
        ranks=numbers_in(about["comm_rank"]),
        peer=int(end) if end else None,
        shape=about[f"{side}_shape"] + about[f"{side}_type"],
    )


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    try:
        with open(folder / name, encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows, columns = list(reader), reader.fieldnames or ()
    except OSError as error:
        raise DryRunError(f"{folder / name}: {error.strerror}; run at level 1 with graphs saved") from None
    if missing := [column for column in _FILES[name] if column not in columns]:
        raise DryRunError(f"{folder / name}: no column {', '.join(missing)}; expected what mindspore writes at level 1")
    return rows


def _rank_of(folder: Path) -> int:
    match = re.fullmatch(r"rank_(\d+)", folder.name)
    if match is None:
        raise DryRunError(f"{folder}: expected a folder named rank_R")
    return int(match[1])
