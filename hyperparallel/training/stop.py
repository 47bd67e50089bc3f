"""SIGTERM as a wish that a rank looks at between steps, so that it can save before it ends."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """Note that this process was asked to end, instead of ending at once.

    Enter it when MindSpore has started, so that this handler is the one that stays. The starter blocks SIGTERM for its
    ranks until then (`launch.start_job`); one that came in the meantime is noted here too.

    Example:
        >>> import signal
        >>> with StopRequest() as stop:
        ...     before = stop.asked
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(before, stop.asked)
        False True
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> StopRequest:
        self._before = signal.signal(signal.SIGTERM, self._ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
