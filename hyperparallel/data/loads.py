"""When the data of steps were made, and how long the steps waited for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

KEPT = 16
"""Loads and waits that are remembered: those of the last few steps."""


class Load(NamedTuple):
    """Making the data of a step, or waiting for them; seconds of `time.perf_counter`."""

    step: int
    start: float
    end: float


class Loads:
    """Remember the last loads, which run on another thread, and the last waits; cheap enough to be always on.

    >>> loads = Loads()
    >>> with loads.making(7):
    ...     pass
    >>> with loads.waiting(7):
    ...     pass
    >>> [load.step for load in loads.made()], loads.waited < 1.0
    ([7], True)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: deque[Load] = deque(maxlen=KEPT)
        self._running: dict[int, float] = {}  # step -> when its load began
        self._waits: deque[Load] = deque(maxlen=KEPT)

    @property
    def waited(self) -> float:
        """Seconds that the last step waited for its data; 0.0 before the first."""
        with self._lock:
            return self._waits[-1].end - self._waits[-1].start if self._waits else 0.0

    @contextmanager
    def making(self, step: int) -> Iterator[None]:
        """Time the making of a step's data."""
        start = time.perf_counter()
        with self._lock:
            self._running[step] = start
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(step, None)
                self._made.append(Load(step, start, time.perf_counter()))

    @contextmanager
    def waiting(self, step: int) -> Iterator[None]:
        """Time how long a step waits."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._waits.append(Load(step, start, time.perf_counter()))

    def made(self) -> list[Load]:
        """Give the last loads in order of time; one that still runs ends now."""
        with self._lock:
            now = time.perf_counter()
            return [*self._made, *(Load(step, start, now) for step, start in self._running.items())]

    def wait_of(self, step: int) -> Load | None:
        """Give the wait of a step; None if it is not among the last ones."""
        with self._lock:
            return next((wait for wait in self._waits if wait.step == step), None)
