"""A plan in time, predicted or measured, as Chrome trace JSON: open it in ui.perfetto.dev or chrome://tracing.

A process per rank with two tracks, `compute` and `messages`, and a counter of live activations. A SEND slice stands
where the message leaves, a RECV slice where its consumer takes it; a flow arrow joins the two. Time is counted in
whole nanoseconds here, so that slices of a track touch and never overlap, and written in microseconds. A measured step
may have a third track, `data`: what its loading thread did meanwhile; a wait for data stands on `compute`.

Format: "Trace Event Format" (Google): X complete, M metadata, s / f flow, C counter.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hyperparallel.algebra import Action, Plan
from hyperparallel.algebra.program import SEND_B, SEND_F, SENDS, B, F
from hyperparallel.algebra.progress import counterpart
from hyperparallel.cost import Costs, Span, Timeline
from hyperparallel.errors import HyperParallelError
from hyperparallel.views.live import live_curve
from hyperparallel.views.loading import Loading, loading_events

UNITS = {"s": 1e9, "ms": 1e6, "us": 1e3}
"""Nanoseconds per unit of time."""

_MARK = 500  # a message without a duration of its own is drawn as long as this part of the step


class Recorded(Protocol):
    """What the stepwise runner notes of an action it ran (`cells.stepwise.Record`): seconds on this rank's clock."""

    action: Action
    start: float
    end: float
    bytes: int


class _Message(NamedTuple):
    """A SEND and when its consumer took it, in nanoseconds."""

    send: Action
    leaves: int
    lasts: int
    taken: int
    args: dict[str, Any]


def trace(plan: Plan, costs: Costs, timeline: Timeline, unit: str = "ms") -> dict[str, Any]:
    """Make the trace of a predicted step.

    Args:
        plan: the plan.
        costs: what the timeline was simulated with; gives the time of every message.
        timeline: of this plan.
        unit: of the costs: `s`, `ms` or `us`; costs in no unit are shown as milliseconds.

    Raises:
        HyperParallelError: the unit is none of these.

    Returns:
        The content of a trace file.
    """
    if unit not in UNITS:
        raise HyperParallelError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
    scale = UNITS[unit]
    spans = [[_whole(span, scale) for span in row] for row in timeline.spans]
    sent: dict[Action, tuple[int, int, dict[str, Any]]] = {}
    for row in spans:
        for action, _, end in row:
            if action.kind != "W":
                send = action._replace(kind=SEND_F if action.kind == F else SEND_B)
                flight = round(costs.duration(send) * scale)
                sent[send] = (end, flight, {"arrives": (end + flight) / 1e3})
    return _trace(plan, spans, sent)


def trace_of_records(
    plan: Plan, records_by_rank: Sequence[Iterable[Recorded]], loading: Sequence[Loading] = ()
) -> dict[str, Any]:
    """Make the trace of a step that really ran.

    Ranks do not begin a step at the same moment and their clocks differ. A rank is moved to later by the least that
    puts every message at its consumer no earlier than at its SEND.

    Args:
        plan: what ran.
        records_by_rank: per rank of one replica, its records: seconds since a moment that is about the same for
            all ranks, such as the beginning of the step.
        loading: of the same ranks, on the same clocks; without, there is no track of it.

    Returns:
        The content of a trace file, with the same tracks as `trace`, and `data`.
    """
    rows: list[list[Span]] = []
    sends: list[dict[Action, Recorded]] = []
    for records in records_by_rank:
        ordered = sorted(records, key=lambda record: (record.start, record.end))
        compute = (record for record in ordered if record.action.is_compute)
        rows.append([_whole(Span(record.action, record.start, record.end), UNITS["s"]) for record in compute])
        sends.append({record.action: record for record in ordered if record.action.kind in SENDS})
    shifts = _shifts(plan, rows, sends)
    spans = [
        [Span(action, start + shift, end + shift) for action, start, end in row]
        for row, shift in zip(rows, shifts, strict=True)
    ]
    sent = {}
    for own, shift in zip(sends, shifts, strict=True):
        for action, record in own.items():
            begin, end = round(record.start * UNITS["s"]) + shift, round(record.end * UNITS["s"]) + shift
            sent[action] = (begin, end - begin, {"bytes": record.bytes})
    content = _trace(plan, spans, sent)
    for rank, (own, shift) in enumerate(zip(loading, shifts, strict=False)):
        data = _tid(plan.ranks, rank)  # tracks of this kind come after all others
        content["traceEvents"] += loading_events(own, rank + 1, _tid(rank, 0), data, shift)
    return content


def later(content: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return a trace in which everything happens later."""
    events = [
        {**event, "ts": event["ts"] + 1e6 * seconds} if "ts" in event else event for event in content["traceEvents"]
    ]
    return {**content, "traceEvents": events}


def side_by_side(traces: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Merge traces of the same ranks, each as its own group of processes under the same time axis.

    Args:
        traces: trace by name of its group, such as `predicted` and `measured`.

    Returns:
        One trace; processes are called `predicted rank 0`, ...
    """
    events: list[dict[str, Any]] = []
    for name, one in traces.items():
        # Track and flow numbers of a group follow those of the group before it.
        base = {key: max((event.get(key, 0) for event in events), default=0) for key in ("pid", "tid", "id")}
        for event in one["traceEvents"]:
            event = {**event, **{key: event[key] + base[key] for key in base if key in event}}
            if event["name"] == "process_name":
                event["args"] = {"name": f"{name} {event['args']['name']}"}
            elif event["name"] == "process_sort_index":
                event["args"] = {"sort_index": event["pid"]}
            events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def to_bytes(content: dict[str, Any]) -> bytes:
    """Return the content of a trace file: one event per line."""
    lines = ",\n".join(json.dumps(event) for event in content["traceEvents"])
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'.encode()


def _whole(span: Span, scale: float) -> Span:
    return Span(span.action, round(span.start * scale), round(span.end * scale))


def _messages_of(plan: Plan, rank: int) -> list[tuple[Action, Action]]:
    """List the rank's (SEND, compute action that takes the message); a gradient is taken by B, or by I."""
    split = {action.stage for program in plan.compute for action in program if action.kind == "I"}
    pairs = []
    for action in plan.programs[rank]:
        if action.kind in SENDS:
            receive = counterpart(action, plan.placement)
            backward = "I" if receive.stage in split else B
            pairs.append((action, receive._replace(kind=F if action.kind == SEND_F else backward)))
    return pairs


def _shifts(plan: Plan, rows: list[list[Span]], sends: list[dict[Action, Recorded]]) -> list[int]:
    """Return by how much later every rank began: the least that no message arrives before it left."""
    starts = {action: start for row in rows for action, start, _ in row}
    least: dict[tuple[int, int], int] = {}  # (sender, receiver) -> how much later the receiver must have begun
    for rank, own in enumerate(sends):
        for send, consumer in _messages_of(plan, rank):
            if send in own and consumer in starts:
                lag = round(own[send].start * UNITS["s"]) - starts[consumer]
                pair = (rank, plan.placement.rank_of(consumer.stage))
                least[pair] = max(lag, least.get(pair, lag))
    shifts = [0] * plan.ranks
    for _ in range(plan.ranks):  # the longest path from rank to rank; true times have no circle that grows
        for (left, right), lag in least.items():
            shifts[right] = max(shifts[right], shifts[left] + lag)
    return shifts


def _trace(plan: Plan, spans: list[list[Span]], sent: dict[Action, tuple[int, int, dict[str, Any]]]) -> dict[str, Any]:
    """Put all tracks together, in nanoseconds until here."""
    begin = {action: start for row in spans for action, start, _ in row}
    messages = [
        _Message(send, *sent[send][:2], begin[consumer], sent[send][2])
        for rank in range(plan.ranks)
        for send, consumer in _messages_of(plan, rank)
        if send in sent and consumer in begin
    ]
    events = _names(plan.ranks)
    for rank, row in enumerate(spans):
        for action, start, end in row:
            events.append(_slice(plan, action, rank, 0, start, end - start, {}))
        for time, live in live_curve(row, plan.placement):
            events.append(
                {"name": "live activations", "ph": "C", "ts": time / 1e3, "pid": rank + 1, "args": {"live": live}}
            )
    last = max((row[-1].end for row in spans if row), default=0)
    return {"traceEvents": events + _message_events(plan, messages, max(1, last // _MARK)), "displayTimeUnit": "ms"}


def _names(ranks: int) -> list[dict[str, Any]]:
    """Name and order processes and tracks. Numbers start at 1, since 0 is the idle task to Perfetto."""
    events: list[dict[str, Any]] = []
    for rank in range(ranks):
        pid = rank + 1
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"rank {rank}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": rank}})
        for track, name in enumerate(("compute", "messages")):
            where = {"ph": "M", "pid": pid, "tid": _tid(rank, track)}
            events.append({"name": "thread_name", **where, "args": {"name": name}})
            events.append({"name": "thread_sort_index", **where, "args": {"sort_index": track}})
    return events


def _tid(rank: int, track: int) -> int:
    return 2 * rank + track + 1


def _slice(
    plan: Plan, action: Action, rank: int, track: int, start: int, lasts: int, more: dict[str, Any]
) -> dict[str, Any]:
    parts = "+".join(plan.regions[plan.placement.region_of(action.stage)].expr.parts)
    return {
        "name": str(action),
        "cat": "message" if track else "compute",
        "ph": "X",
        "ts": start / 1e3,
        "dur": lasts / 1e3,
        "pid": rank + 1,
        "tid": _tid(rank, track),
        "args": {"stage": action.stage, "kind": action.kind, "micro-batch": action.mb, "part": parts, **more},
    }


def _message_events(plan: Plan, messages: list[_Message], mark: int) -> list[dict[str, Any]]:
    """Lay SENDs and RECVs on their tracks in order of time, and join them with arrows.

    Ends that fall on one moment share the time until the next, SENDs first; so every RECV slice begins no earlier
    than its SEND slice, and each slice is at least a nanosecond long.
    """
    nominal: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))  # rank -> time -> number of ends
    ends = []
    for index, message in enumerate(messages):
        receive = counterpart(message.send, plan.placement)
        for time, action in ((message.leaves, message.send), (message.taken, receive)):
            nominal[plan.placement.rank_of(action.stage)][time] += 1
            ends.append((time, action.kind not in SENDS, index, action))
    room = {rank: _rooms(times, mark) for rank, times in nominal.items()}
    placed: dict[int, list[tuple[int, int, Action]]] = defaultdict(list)  # rank -> (start, message, end of it)
    left: dict[int, int] = {}  # message -> start of its SEND slice
    for time, _, index, action in sorted(ends):
        rank, start = plan.placement.rank_of(action.stage), max(time, left.get(index, time))
        if placed[rank]:
            before = placed[rank][-1][0]
            start = max(start, before + (room[rank][time] if before >= time else 1))
        left.setdefault(index, start)
        placed[rank].append((start, index, action))
    events = []
    for rank, row in placed.items():
        for (start, index, action), following in zip(row, [*row[1:], None], strict=True):
            message, send = messages[index], action.kind in SENDS
            lasts = max(message.lasts, mark) if send else mark
            lasts = lasts if following is None else min(lasts, following[0] - start)
            events.append(_slice(plan, action, rank, 1, start, lasts, message.args if send else {}))
            arrow = {"name": "message", "cat": "message", "id": index + 1, "pid": rank + 1, "tid": _tid(rank, 1)}
            events.append({**arrow, "ph": "s" if send else "f", "ts": start / 1e3, **({} if send else {"bp": "e"})})
    return events


def _rooms(times: dict[int, int], mark: int) -> dict[int, int]:
    """Return, for every moment, how long each of the ends that fall on it may be."""
    ordered = sorted(times)
    return {
        time: max(1, min(mark, (following - time) // times[time]))
        for time, following in zip(ordered, [*ordered[1:], ordered[-1] + mark * times[ordered[-1]]], strict=True)
    }
