"""A list schedule that keeps pace with the backbone: no encode starts too far ahead, few graphs are open at a time.

A plan is static, so nothing waits for memory while it runs: what bounds memory must lie in the order of the rows.
A rank starts an encode only behind tasks of its own row that follow from the start of enough earlier encodes' tasks
(`room` of them may wait at home), and only when it holds few enough graphs, which its own backwards before it give
back. Both hold however long the tasks take.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from hyperparallel.planner.list_schedule import task_tails
from hyperparallel.planner.play import Graph

_NEVER = float("inf")
_WINDOW = 8  # how far down the queue a rank looks for an encode that it may start


class Pace(NamedTuple):
    """What a paced schedule keeps and aims at.

    Args:
        room: most encodes that have started and whose task has not, per home rank.
        own: most graphs open on a home rank.
        open: most graphs open on another rank.
        target: the step time aimed at.
        timed: look at what has started in time rather than at what the rank's own order implies.
        busy: start encodes whenever the next task is not ready.
        last: a home rank starts an encode only when all other ranks hold all that they may.
    """

    room: float
    own: float
    open: float
    target: float
    timed: bool = False
    busy: bool = False
    last: bool = False


class Pacer:
    """Makes paced schedules of one problem.

    Args:
        graph: the numbered problem.
    """

    def __init__(self, graph: Graph) -> None:
        problem = graph.problem
        self.graph, self.problem, self.encodes, self.homes = graph, problem, problem.encodes, problem.homes
        self.home_ranks = set(problem.homes)
        self.tail = task_tails(graph)
        self.successors: list[list[tuple[int, float]]] = [[] for _ in problem.tasks]
        for task, (_, needs) in enumerate(problem.tasks):
            for need, delay in needs:
                self.successors[need].append((task, delay))
        self.missing = [len(needs) + len(graph.feeders[task]) for task, (_, needs) in enumerate(problem.tasks)]
        self.load = [sum(problem.tasks[task].duration for task in row) for row in problem.rows]
        self.queue = sorted(range(graph.encodes), key=lambda e: (-self.tail[self.encodes[e].feeds], self._key(e)))
        self.number = [0] * graph.encodes  # of an encode among those that wait at its home
        self.used: list[int] = [0] * len(problem.tasks)  # encodes of that home that are used once a task has started
        self.count_used()
        self.known = self.count_known()

    def _key(self, index: int) -> tuple:
        encode = self.encodes[index]
        return encode.group, -encode.forward, index

    def count_used(self) -> None:
        for row in self.problem.rows:
            used = 0
            for task in row:
                for index in sorted(self.graph.feeders[task], key=self._key):
                    self.number[index] = used
                    used += self.encodes[index].forward > 0
                self.used[task] = used

    def count_known(self) -> list[dict[int, int]]:
        """Count, per task and home, the encodes that are used for certain once the task has ended."""
        known: list[dict[int, int]] = [{} for _ in self.problem.tasks]
        before: dict[int, int] = {}
        for row in self.problem.rows:
            before.update(zip(row[1:], row, strict=False))
        for task in self.graph.task_order:
            mine, rank = known[task], self.problem.rank_of[task]
            needs = [need for need, _ in self.problem.tasks[task].needs]
            for need in needs if task not in before else [*needs, before[task]]:
                for home, count in known[need].items():
                    if count > mine.get(home, 0):
                        mine[home] = count
            if rank in self.home_ranks:
                mine[rank] = self.used[task]
        return known

    def run(self, pace: Pace) -> tuple[list[list[int]], list[int]] | None:
        """Make one schedule.

        Returns:
            Per rank its actions, and the owners; None when it cannot go on.
        """
        return _Run(self, pace).result()


class _Run:
    """One pass forward in time."""

    def __init__(self, pacer: Pacer, pace: Pace) -> None:
        self.p, self.pace, self.graph, self.encodes, self.homes = pacer, pace, pacer.graph, pacer.encodes, pacer.homes
        ranks = range(pacer.problem.ranks)
        self.order, self.latest = pacer.problem.rows, [pace.target - tail for tail in pacer.tail]
        self.missing, self.ready = pacer.missing.copy(), [0.0] * len(pacer.missing)
        self.free, self.place, self.load = [0.0 for _ in ranks], [0 for _ in ranks], pacer.load.copy()
        for encode in self.encodes:
            if encode.owner is not None:
                self.load[encode.owner] += encode.forward + (encode.backward or 0.0)
        self.queue, self.owners = pacer.queue.copy(), [encode.owner for encode in self.encodes]
        self.cap = [pace.own if rank in pacer.home_ranks else pace.open for rank in ranks]
        self.open = [0 for _ in ranks]
        self.backwards: list[list[tuple[float, int]]] = [[] for _ in ranks]
        self.known: list[dict[int, int]] = [{} for _ in ranks]
        self.rows: list[list[int]] = [[] for _ in ranks]
        self.events = [(0.0, rank) for rank in ranks]
        self.now = 0.0

    def result(self) -> tuple[list[list[int]], list[int]] | None:
        left = self.graph.actions
        while left:
            if self.events:
                self.now, rank = heappop(self.events)
                if self.now < self.free[rank]:
                    continue
                choice = self.choose(rank)
            else:  # all wait for a gap that does not come: the most urgent action of all goes on
                choices = [(*option, rank) for rank in range(len(self.rows)) for option in self.options(rank, True)]
                if not choices:
                    return None
                *choice, rank = min(choices)
                self.now = max(self.now, self.free[rank])
            if choice is not None:
                left -= 1
                self.act(rank, choice[1], choice[2])
        return self.rows, self.owners

    def options(self, rank: int, forced: bool = False) -> Iterator[tuple[float, int, int]]:
        """List what a rank may do now: (latest start, kind, which); kind 0 is a backward, 1 a task, 2 a forward."""
        index = self.first_encode(rank, forced)
        if index is not None:
            yield self.due(rank, index), 2, index
        if self.backwards[rank] and (forced or self.backwards[rank][0][0] <= self.now):
            back = self.backwards[rank][0][1]
            latest = self.pace.target - self.encodes[back].backward
            if self.open[rank] >= self.cap[rank] and self.queue:  # the next encode waits for it
                latest = min(latest, self.due(rank, self.queue[0]) - self.encodes[back].backward)
            yield latest, 0, back
        row, place = self.order[rank], self.place[rank]
        if place < len(row) and not self.missing[row[place]] and (forced or self.ready[row[place]] <= self.now):
            yield self.latest[row[place]], 1, row[place]

    def choose(self, rank: int) -> tuple[float, int, int] | None:
        """Take the most urgent of what a rank may do now that ends before its next task must start."""
        row, place = self.order[rank], self.place[rank]
        ready = latest = gap = _NEVER
        if place < len(row):
            task = row[place]
            gap = latest = self.latest[task]
            if not self.missing[task]:
                ready = self.ready[task]
                gap = max(gap, ready)
            elif self.pace.busy:
                gap = _NEVER
        best = None
        for option in self.options(rank):
            urgent, kind, index = option
            if kind != 1:
                encode = self.encodes[index]
                size = encode.forward if kind else encode.backward
                if self.now + size > gap * (1 + 1e-9) and urgent >= latest:
                    continue
            if best is None or option < best:
                best = option
        for when in (ready, self.backwards[rank][0][0] if self.backwards[rank] else _NEVER):
            if best is None and self.now < when < _NEVER:
                heappush(self.events, (when, rank))
        return best

    def due(self, rank: int, index: int) -> float:
        encode = self.encodes[index]
        return self.latest[encode.feeds] - encode.forward - (encode.send if rank != self.homes[index] else 0.0)

    def first_encode(self, rank: int, forced: bool) -> int | None:
        """Find the first encode in the queue that a rank may start."""
        full, homes = self.open[rank] >= self.cap[rank], self.p.home_ranks
        later = (
            self.pace.last
            and rank in homes
            and any(held < self.cap[other] for other, held in enumerate(self.open) if other not in homes)
        )
        for index in self.queue[:_WINDOW]:
            encode, owner, home = self.encodes[index], self.owners[index], self.homes[index]
            if owner is None:
                if later:
                    continue
                if not forced and self.load[rank] + encode.forward + (encode.backward or 0.0) > self.pace.target:
                    continue
            elif owner != rank:
                continue
            if encode.forward:
                known = self.known[home if self.pace.timed else rank].get(home, 0)
                if self.p.number[index] - known >= self.pace.room or (full and encode.backward is not None):
                    continue
            return index
        return None

    def act(self, rank: int, kind: int, index: int) -> None:
        """Let a rank do something now, or as soon as it can when it was forced."""
        encode = self.encodes[index] if kind != 1 else None
        if kind == 0:
            when, _ = heappop(self.backwards[rank])
            end = max(self.now, when) + encode.backward
            self.rows[rank].append(self.graph.backward(index))
            self.open[rank] -= encode.forward > 0
            self.learn(rank, encode.follows)
        elif kind == 1:
            end = max(self.now, self.ready[index]) + self.graph.duration[index]
            self.rows[rank].append(index)
            self.place[rank] += 1
            self.learn(rank, index)
            self.end_task(index, end)
        else:
            end = self.now + encode.forward
            self.rows[rank].append(self.graph.forward(index))
            self.queue.remove(index)
            if self.owners[index] is None:
                self.owners[index] = rank
                self.load[rank] += encode.forward + (encode.backward or 0.0)
            self.open[rank] += encode.forward > 0 and encode.backward is not None
            self.arrive(encode.feeds, end + (encode.send if rank != self.homes[index] else 0.0))
        self.free[rank] = end
        heappush(self.events, (end, rank))
        for other, free in enumerate(self.free):
            if free <= self.now and self.queue:  # the queue or what is used has moved on
                heappush(self.events, (self.now, other))

    def learn(self, rank: int, task: int) -> None:
        mine = self.known[rank]
        for home, count in self.p.known[task].items():
            if count > mine.get(home, 0):
                mine[home] = count

    def end_task(self, task: int, end: float) -> None:
        for successor, delay in self.p.successors[task]:
            self.arrive(successor, end + delay)
        for index in self.graph.followers[task]:
            owner = self.owners[index]
            when = end + (self.encodes[index].receive if owner != self.homes[index] else 0.0)
            heappush(self.backwards[owner], (when, index))
            heappush(self.events, (max(when, self.free[owner]), owner))

    def arrive(self, task: int, when: float) -> None:
        """Note when one thing that a task waits for is there; wake its rank when it is the last."""
        self.ready[task] = max(self.ready[task], when)
        self.missing[task] -= 1
        if not self.missing[task]:
            rank = self.graph.problem.rank_of[task]
            if self.order[rank][self.place[rank] :][:1] == (task,):
                heappush(self.events, (max(self.ready[task], self.free[rank]), rank))
