"""Problems and an independent check for the planner's tests: plans are played by relaxation, not by the planner."""

import random
from collections.abc import Iterator
from functools import cache

from hyperparallel.planner import Encode, Filling, Problem, Task
from hyperparallel.planner.play import Graph, play


def times(problem: Problem, rows, owners) -> dict:
    """Play a plan by relaxing starts until nothing changes; returns action -> (start, end)."""
    duration, needs = {}, {}
    for index, task in enumerate(problem.tasks):
        duration["T", index] = task.duration
        needs["T", index] = [(("T", need), delay) for need, delay in task.needs]
    homes = {task: rank for rank, row in enumerate(problem.rows) for task in row}
    for index, encode in enumerate(problem.encodes):
        away = owners[index] != homes[encode.feeds]
        duration["F", index], needs["F", index] = encode.forward, []
        needs["T", encode.feeds].append((("F", index), encode.send * away))
        if encode.backward is not None:
            duration["B", index] = encode.backward
            needs["B", index] = [(("T", encode.follows), encode.receive * away)]
    for row in rows:
        for left, right in zip(row, row[1:], strict=False):
            needs[right].append((left, 0.0))
    start = dict.fromkeys(duration, 0.0)
    for _ in range(len(duration) + 1):
        changed = False
        for action, before in needs.items():
            earliest = max((start[need] + duration[need] + delay for need, delay in before), default=0.0)
            if earliest > start[action]:
                start[action], changed = earliest, True
        if not changed:
            return {action: (start[action], start[action] + duration[action]) for action in duration}
    raise AssertionError("the plan waits in a circle")


def check_filling(problem: Problem, filling: Filling) -> None:
    """Assert that a plan is complete, keeps the LLM's order and the owners, and takes the time that it says."""
    actions = [action for row in filling.rows for action in row]
    expected = [("T", index) for index in range(len(problem.tasks))]
    expected += [("F", index) for index in range(len(problem.encodes))]
    expected += [("B", index) for index, encode in enumerate(problem.encodes) if encode.backward is not None]
    assert sorted(actions) == sorted(expected)
    for rank, row in enumerate(filling.rows):
        assert tuple(index for kind, index in row if kind == "T") == problem.rows[rank]
        assert all(filling.owners[index] == rank for kind, index in row if kind != "T")
    for encode, owner in zip(problem.encodes, filling.owners, strict=True):
        assert encode.owner in (None, owner)
    played = times(problem, filling.rows, filling.owners)
    assert max(end for _, end in played.values()) == filling.step_time
    assert filling.bound <= filling.step_time
    assert filling.proven == (filling.step_time <= filling.bound * (1 + 1e-6))


def held(problem: Problem, filling: Filling) -> int:
    """Count the most encodes that a rank holds, looked at in the middle between any two moments of change."""
    played = times(problem, filling.rows, filling.owners)
    homes = {task: rank for rank, row in enumerate(problem.rows) for task in row}
    spans = []
    for index, encode in enumerate(problem.encodes):
        if not encode.forward:
            continue
        owner, home = filling.owners[index], homes[encode.feeds]
        begin, end = played["F", index]
        feeds = played["T", encode.feeds][0]
        kept = feeds if owner == home else end
        spans.append((owner, begin, kept if encode.backward is None else played["B", index][1]))
        if owner != home:
            spans.append((home, end + encode.send, feeds))
    moments = sorted({time for _, begin, end in spans for time in (begin, end)})
    middles = [(left + right) / 2 for left, right in zip(moments, moments[1:], strict=False) if right - left > 1e-6]
    return max(
        sum(rank == r and begin < time < end for r, begin, end in spans)
        for time in middles
        for rank in range(problem.ranks)
    )


def paper_time(problem: Problem) -> float:
    """Return the step time of the paper's placement: owner m mod P, encodes first, encoder backwards last."""
    owners = [e.group % problem.ranks if e.owner is None else e.owner for e in problem.encodes]
    rows = []
    for rank, row in enumerate(problem.rows):
        own = [index for index, owner in enumerate(owners) if owner == rank]
        back = [("B", index) for index in own if problem.encodes[index].backward is not None]
        rows.append([*(("F", index) for index in own), *(("T", task) for task in row), *back])
    return max(end for _, end in times(problem, rows, owners).values())


def plans(problem: Problem) -> Iterator[tuple[list, list]]:
    """List all plans of a tiny problem: every owner, every place."""

    def place(index: int, rows: list, owners: list) -> Iterator[tuple[list, list]]:
        if index == len(problem.encodes):
            yield rows, owners
            return
        encode = problem.encodes[index]
        for rank in range(problem.ranks) if encode.owner is None else (encode.owner,):
            row = rows[rank]
            for first in range(len(row) + 1):
                with_forward = [*row[:first], ("F", index), *row[first:]]
                lasts = range(first + 1, len(row) + 2) if encode.backward is not None else (None,)
                for last in lasts:
                    new = with_forward
                    if last is not None:
                        new = [*with_forward[:last], ("B", index), *with_forward[last:]]
                    yield from place(index + 1, [*rows[:rank], new, *rows[rank + 1 :]], [*owners, rank])

    yield from place(0, [[("T", task) for task in row] for row in problem.rows], [])


def best_time(problem: Problem) -> float:
    """Return the step time of the best of all plans of a tiny problem."""
    graph = Graph(problem)
    links = cache(lambda owners: graph.links(owners))
    played = (play(graph.number(rows), links(tuple(owners)), graph.duration) for rows, owners in plans(problem))
    return min(plan.step_time for plan in played if plan is not None)


def random_problem(seed: int, *, ranks: int = 3, micro_batches: int = 4, given: bool = False) -> Problem:
    """Draw a problem with forwards, then backwards, in a random order that can run, home on any rank."""
    draw = random.Random(seed)
    home = draw.randrange(ranks)
    path = [home, *(rank for rank in range(ranks) if rank != home)] * draw.choice((1, 1, 2))
    tasks: list[Task] = []
    rows: list[list[int]] = [[] for _ in range(ranks)]
    chains = []
    for _ in range(micro_batches):
        chain = [(rank, draw.choice((0.0, 1.0, 2.0, 3.5))) for rank in [*path, *reversed(path)]]
        chains.append(chain)
    last: list[int | None] = [None] * micro_batches
    first: list[int] = [-1] * micro_batches
    while any(chains):
        mb = draw.choice([mb for mb, chain in enumerate(chains) if chain])
        rank, duration = chains[mb].pop(0)
        delay = draw.choice((0.0, 0.5))
        tasks.append(Task(duration, () if last[mb] is None else ((last[mb], delay),)))
        last[mb] = len(tasks) - 1
        if first[mb] < 0:
            first[mb] = last[mb]
        rows[rank].append(last[mb])
    trained = draw.random() < 0.5
    encodes = [
        Encode(
            forward=draw.choice((0.0, 2.0, 3.0, 7.0)),
            backward=draw.choice((0.0, 1.0, 5.0)) if trained else None,
            feeds=first[mb],
            follows=last[mb] if trained else None,
            send=draw.choice((0.0, 0.5)),
            receive=draw.choice((0.0, 1.0)),
            owner=draw.randrange(ranks) if given else None,
            group=mb,
        )
        for mb in range(micro_batches)
        for _ in range(draw.choice((1, 1, 2)))
    ]
    return Problem(tuple(tasks), tuple(map(tuple, rows)), tuple(encodes))
