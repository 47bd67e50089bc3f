"""What a rank did for its data about a measured step, for its trace: a track of the loading thread, and the waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Loading(NamedTuple):
    """What a rank did for its data; each as (name, start, end), in seconds on the clock of the rank's records."""

    loads: Sequence[tuple[str, float, float]] = ()
    """On the loading thread, one after the other."""
    waits: Sequence[tuple[str, float, float]] = ()
    """On the thread that computes, which does nothing else then."""


def loading_events(loading: Loading, pid: int, compute: int, data: int, shift: int) -> list[dict[str, Any]]:
    """Make the events of a rank.

    Args:
        loading: of the rank.
        pid: its process in the trace.
        compute: its track of compute actions, which a wait stands on.
        data: its new track.
        shift: by how much later the rank began, in nanoseconds.
    """
    where = {"ph": "M", "pid": pid, "tid": data}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", **where, "args": {"name": "data"}},
        {"name": "thread_sort_index", **where, "args": {"sort_index": 2}},
    ]
    for track, spans in ((data, loading.loads), (compute, loading.waits)):
        for name, start, end in spans:
            begin, lasts = round(start * 1e9) + shift, max(1, round((end - start) * 1e9))
            events.append(
                {
                    "name": name,
                    "cat": "data",
                    "ph": "X",
                    "ts": begin / 1e3,
                    "dur": lasts / 1e3,
                    "pid": pid,
                    "tid": track,
                    "args": {},
                }
            )
    return events
