"""Traces: tracks that never overlap, arrows with both ends on slices, and measured beside predicted."""

import json
import random
from collections import defaultdict
from typing import NamedTuple

import pytest
from views_cases import ALL, TRANSPOSED, planned

from hyperparallel.algebra import Action, parse_action
from hyperparallel.algebra.progress import counterpart
from hyperparallel.errors import HyperParallelError
from hyperparallel.views.loading import Loading
from hyperparallel.views.perfetto import later, side_by_side, to_bytes, trace, trace_of_records

COST = "vision=6/9,llm=5/8,gen=8/12"


class Record(NamedTuple):
    """As in `cells.stepwise`, which needs MindSpore."""

    action: Action
    start: float
    end: float
    bytes: int = 0


def check(content, plan):
    """Check what must hold of any trace and return its slices by name."""
    events = json.loads(json.dumps(content))["traceEvents"]
    slices, tracks = {}, defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["name"] not in slices
            slices[event["name"]] = event
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            action = parse_action(event["name"])
            assert event["pid"] == plan.placement.rank_of(action.stage) + 1
            assert event["tid"] == 2 * event["pid"] - action.is_compute
            assert {"stage": action.stage, "kind": action.kind, "micro-batch": action.mb}.items() <= event[
                "args"
            ].items()
            assert event["args"]["part"]
    for spans in tracks.values():
        spans.sort()
        assert all(end <= start + 1e-6 for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
        assert all(start < end for start, end in spans)
    check_arrows(events, slices, plan)
    named = {
        (e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")
    }
    for rank in range(plan.ranks):
        pid = rank + 1
        assert named[pid, None] == f"rank {rank}"
        assert (named[pid, 2 * pid - 1], named[pid, 2 * pid]) == ("compute", "messages")
    assert len(named) == 3 * plan.ranks
    return slices


def check_arrows(events, slices, plan):
    """Every arrow leaves a SEND slice and ends, no earlier, on the slice of its RECV."""
    begin = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in slices.values()}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    sends = [action for program in plan.programs for action in program if action.kind in ("SEND_F", "SEND_B")]
    assert starts.keys() == ends.keys() and len(starts) == len(sends)
    assert sum(e["ph"] in "sf" for e in events) == 2 * len(sends)
    seen = set()
    for number, start in starts.items():
        end = ends[number]
        names = [begin[e["pid"], e["tid"], e["ts"]] for e in (start, end)]  # bound to slices that exist
        assert str(counterpart(parse_action(names[0]), plan.placement)) == names[1]
        assert end["ts"] >= start["ts"] and end["bp"] == "e"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        seen.add(names[0])
    assert seen == set(map(str, sends))


@pytest.mark.parametrize("line", ALL)
@pytest.mark.parametrize("message", [0.0, 0.7, 40.0])
def test_structure(line, message):
    plan, costs, timeline = planned(line, 3, 5, COST, message)
    slices = check(trace(plan, costs, timeline), plan)
    for row in timeline.spans:
        for action, start, end in row:
            event = slices[str(action)]
            assert (event["ts"], event["dur"]) == (pytest.approx(1e3 * start), pytest.approx(1e3 * (end - start)))
    assert slices.keys() == {str(action) for program in plan.programs for action in program}


@pytest.mark.parametrize("line", ["transpose(vision) >> 1f1b(llm)", "zb(llm, fold=v)"])
def test_actions_that_take_no_time_do_not_break_arrows(line):
    plan, costs, timeline = planned(line, 4, 6, "vision=0/0,llm=0/0")
    content = trace(plan, costs, timeline)
    for event in content["traceEvents"]:
        if event.get("cat") == "compute":
            event["dur"] = 1e-9  # `check` wants slices that can be seen
    events = content["traceEvents"]
    slices = {e["name"]: e for e in events if e["ph"] == "X"}
    check_arrows(events, slices, plan)


def test_a_send_is_drawn_as_long_as_it_flies_and_a_receive_where_it_is_taken():
    plan, costs, timeline = planned(TRANSPOSED, 2, 2, "vision=12/0,llm=4/8", 3.0)
    slices = check(trace(plan, costs, timeline, "s"), plan)
    send, receive = slices["1SEND_F1"], slices["2RECV_F1"]
    assert (send["ts"], send["dur"], send["args"]["arrives"]) == (12e6, 3e6, 15e6)
    assert slices["2F1"]["ts"] == 16e6  # rank 0 is busy when it arrives
    assert receive["ts"] >= 16e6 and receive["ts"] + receive["dur"] <= slices["2F1"]["ts"] + slices["2F1"]["dur"]
    assert send["args"]["part"] == "vision" and receive["args"]["part"] == "llm"


def test_an_unknown_unit():
    with pytest.raises(HyperParallelError, match="unit 'min' is not one of s, ms, us"):
        trace(*planned(TRANSPOSED, 2, 2, "vision=12/0,llm=4/8"), "min")


@pytest.mark.parametrize("line", ALL)
def test_the_counter_peaks_at_the_peak_live_count(line):
    plan, costs, timeline = planned(line, 3, 5, COST)
    counts = defaultdict(list)
    for event in trace(plan, costs, timeline)["traceEvents"]:
        if event["ph"] == "C":
            counts[event["pid"]].append((event["ts"], event["args"]["live"]))
    for rank, peak in enumerate(timeline.peak_live):
        curve = counts[rank + 1]
        assert curve == sorted(curve) and len({time for time, _ in curve}) == len(curve)
        assert max(live for _, live in curve) == peak and curve[-1][1] == 0


def recorded(plan, timeline, late=0.0, seed=0):
    """Return records as the runner makes them, of ranks that began up to `late` seconds after each other."""
    random.seed(seed)
    rows = []
    for rank, row in enumerate(timeline.spans):
        began, records = random.uniform(0, late), []
        for action, start, end in row:
            end -= 0.2 * (end - start)  # sending takes the rest
            records.append(Record(action, start - began, end - began))
            send = action._replace(kind="SEND_F" if action.kind == "F" else "SEND_B")
            if send in plan.programs[rank] and action.kind != "W":
                records.append(Record(send, end - began, end - began + 0.05, 4096))
        rows.append(records)
    return rows


@pytest.mark.parametrize("line", ALL)
@pytest.mark.parametrize("late", [0.0, 30.0])
def test_structure_of_a_measured_step(line, late):
    plan, _, timeline = planned(line, 3, 5, COST)
    slices = check(trace_of_records(plan, recorded(plan, timeline, late)), plan)
    assert slices.keys() == {str(action) for program in plan.programs for action in program}
    if not late:  # clocks that agree are left alone
        for row in timeline.spans:
            assert slices[str(row[0].action)]["ts"] == pytest.approx(1e6 * row[0].start)
    assert all(e["args"]["bytes"] == 4096 for name, e in slices.items() if "SEND" in name)
    receives = [e for name, e in slices.items() if "RECV_F" in name]
    for event in receives:
        consumer = slices["{stage}F{micro-batch}".format(**event["args"])]
        assert consumer["ts"] <= event["ts"] <= consumer["ts"] + consumer["dur"]


def test_predicted_and_measured_side_by_side():
    plan, costs, timeline = planned(TRANSPOSED, 3, 4, COST, 0.5)
    one, two = trace(plan, costs, timeline, "s"), trace_of_records(plan, recorded(plan, timeline, 5.0))
    before = json.dumps([one, two])
    events = side_by_side({"predicted": one, "measured": two})["traceEvents"]
    assert json.dumps([one, two]) == before
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {
        pid + 1: f"{group} rank {pid % 3}" for pid, group in enumerate(["predicted"] * 3 + ["measured"] * 3)
    }
    assert [e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"] == [1, 2, 3, 4, 5, 6]
    assert len(events) == len(one["traceEvents"]) + len(two["traceEvents"])
    for phase in "sf":
        ids = [event["id"] for event in events if event["ph"] == phase]
        assert len(set(ids)) == len(ids)
    tracks = {(event["pid"], event["tid"]) for event in events if "tid" in event}
    assert len({tid for _, tid in tracks}) == len(tracks) == 12


def test_loading_has_a_track_of_its_own_and_waits_stand_before_the_step():
    plan, _, timeline = planned(TRANSPOSED, 3, 4, COST, 0.5)
    records = recorded(plan, timeline, 5.0)
    began = [min(record.start for record in row) for row in records]
    loading = [
        Loading(
            [("load step 7", at - 0.5, at + 0.25), ("load step 8", at + 0.25, at + 3.0)],
            [("wait for data", at - 1.0, at)],
        )
        for at in began
    ]
    without = trace_of_records(plan, records)["traceEvents"]
    events = trace_of_records(plan, records, loading)["traceEvents"]
    assert events[: len(without)] == without
    added = events[len(without) :]
    tracks = {event["tid"]: event["args"]["name"] for event in added if event["name"] == "thread_name"}
    assert len(tracks) == 3 and set(tracks.values()) == {"data"}
    assert not tracks.keys() & {event["tid"] for event in without if "tid" in event}
    shifts = []
    for rank in range(plan.ranks):
        own = {event["name"]: event for event in added if event["pid"] == rank + 1 and event["ph"] == "X"}
        assert own["load step 7"]["tid"] == own["load step 8"]["tid"] in tracks
        assert own["load step 8"]["ts"] - own["load step 7"]["ts"] == pytest.approx(0.75e6)
        assert own["load step 8"]["dur"] == pytest.approx(2.75e6)
        first = min((e for e in without if e["pid"] == rank + 1 and e.get("cat") == "compute"), key=lambda e: e["ts"])
        wait = own["wait for data"]
        assert wait["tid"] == first["tid"] and wait["ts"] + wait["dur"] == pytest.approx(first["ts"])
        shifts.append(first["ts"] / 1e6 - began[rank])  # all of a rank is moved with its clock
        assert wait["ts"] / 1e6 == pytest.approx(began[rank] - 1.0 + shifts[-1])
    assert max(shifts) > 0.0
    json.dumps(events)


def test_a_trace_can_be_moved():
    content = trace(*planned(TRANSPOSED, 2, 2, COST))
    moved = later(content, 2.5)
    for before, after in zip(content["traceEvents"], moved["traceEvents"], strict=True):
        assert after == (before | {"ts": pytest.approx(before["ts"] + 2.5e6)} if "ts" in before else before)


def test_bytes():
    content = trace(*planned(TRANSPOSED, 2, 2, COST))
    assert json.loads(to_bytes(content)) == content
