"""A list schedule: encodes go where the LLM, played for a target step time, leaves room.

For a target T every task has a latest start: T minus the longest path that still follows. Ranks then run forward in
time. A rank starts an encode, the first in the queue, when it ends before the rank's next task must start; otherwise
it runs that task as soon as it is ready. A target that is too short makes encodes late, one that is too long wastes
time, so a few are tried between a bound and the best plan so far (`list_plan`).
"""

from __future__ import annotations

from heapq import heappop, heappush

from hyperparallel.planner.play import Graph

_NEVER = float("inf")
_WINDOW = 8  # how far down the queue a rank looks for an encode that fits
_SLACK = 1e-9


class ListScheduler:
    """Makes list schedules of one problem.

    Args:
        graph: the numbered problem.

    Attributes:
        low: a quick lower bound, the first target to try.
        uneven: encodes differ in size, so the order of the queue matters.
    """

    def __init__(self, graph: Graph) -> None:
        problem = graph.problem
        self.graph, self.problem = graph, problem
        self.encodes, self.homes = problem.encodes, problem.homes
        self.successors: list[list[tuple[int, float]]] = [[] for _ in problem.tasks]
        for task, (_, needs) in enumerate(problem.tasks):
            for need, delay in needs:
                self.successors[need].append((task, delay))
        self.missing = [len(needs) + len(graph.feeders[task]) for task, (_, needs) in enumerate(problem.tasks)]
        self.tail = task_tails(graph)
        self.load = [sum(problem.tasks[task].duration for task in row) for row in problem.rows]
        self.pair = [encode.forward + (encode.backward or 0.0) for encode in self.encodes]
        self.low = max(
            (sum(self.load) + sum(self.pair)) / problem.ranks,
            max(self.tail, default=0.0),
            max((e.forward + self.tail[e.feeds] for e in self.encodes), default=0.0),
            max(self.pair, default=0.0) + min(self.load),
        )
        for encode, pair in zip(self.encodes, self.pair, strict=True):
            if encode.owner is not None:
                self.load[encode.owner] += pair
        self.uneven = len({encode.forward for encode in self.encodes if encode.forward}) > 1
        self.queues = [self._queue(0.0), self._queue(1.0)]

    def _queue(self, share: float) -> list[int]:
        """Order the encodes by due time (share 0) or latest start (share 1); of equal ones the longer comes first."""
        tail, encodes = self.tail, self.encodes

        def key(index: int) -> tuple:
            encode = encodes[index]
            return -tail[encode.feeds] - share * encode.forward, encode.group, -encode.forward, index

        return sorted(range(len(encodes)), key=key)

    def run(self, target: float, late: bool, reserve: bool, eager: float, ahead: float, stop: float) -> tuple | None:
        """Make one list schedule.

        Args:
            target: the step time aimed at.
            late: the queue is in the order of latest starts, else of due times.
            reserve: encodes of which a rank has room for one only get ranks of their own beforehand.
            eager: an encode goes before a ready task when its features are due within this time after it.
            ahead: most encodes begun whose task has not begun; bounds what waits at home.
            stop: give up when the step time is going to be longer.

        Returns:
            Per rank its actions, the owners, and the step time; None when given up.
        """
        return _Run(self, target, self.queues[late], reserve, eager, ahead, stop).result()


def task_tails(graph: Graph) -> list[float]:
    """Measure, per task, the least time from its start to the end of the step, encoder backwards included."""
    problem = graph.problem
    rest = [max((problem.encodes[e].backward for e in back), default=0.0) for back in graph.followers]
    before = [-1] * len(problem.tasks)
    for row in problem.rows:
        for task, following in zip(row, row[1:], strict=False):
            before[following] = task
    for task in reversed(graph.task_order):
        duration, needs = problem.tasks[task]
        tail = rest[task] = rest[task] + duration
        left = before[task]
        if left >= 0 and rest[left] < tail:
            rest[left] = tail
        for need, delay in needs:
            if rest[need] < tail + delay:
                rest[need] = tail + delay
    return rest


class _Run:
    """One pass forward in time."""

    def __init__(self, s: ListScheduler, target: float, queue: list[int], reserve: bool, eager, ahead, stop):
        self.s, self.target, self.eager, self.stop = s, target + _SLACK * target, eager, stop
        self.graph, self.encodes, self.homes, self.order, self.tail = (
            s.graph,
            s.encodes,
            s.homes,
            s.problem.rows,
            s.tail,
        )
        self.rank_of = s.problem.rank_of
        ranks = range(s.problem.ranks)
        self.latest = [target - tail for tail in s.tail]
        self.missing, self.ready = s.missing.copy(), [0.0] * len(s.missing)
        self.free, self.place, self.load, self.queue = (
            [0.0 for _ in ranks],
            [0 for _ in ranks],
            s.load.copy(),
            queue.copy(),
        )
        self.owners = [encode.owner for encode in s.encodes]
        self.backwards: list[list[tuple[float, int]]] = [[] for _ in ranks]
        self.rows: list[list[int]] = [[] for _ in ranks]
        self.events = [(0.0, rank) for rank in ranks]
        self.most_ahead, self.ahead = ahead, 0  # encodes begun whose task has not
        self.left = len(s.missing) + sum(1 if encode.backward is None else 2 for encode in s.encodes)
        if reserve:
            self.reserve()

    def reserve(self) -> None:
        """Give encodes that leave a rank no room for a second of their size to the ranks, the emptiest first."""
        for index in sorted(range(len(self.encodes)), key=lambda index: (-self.s.pair[index], index)):
            rank = min(reversed(range(len(self.rows))), key=self.load.__getitem__)
            if self.load[rank] + 2.0 * self.s.pair[index] <= self.target:
                break
            if self.owners[index] is None:
                self.owners[index] = rank
                self.load[rank] += self.s.pair[index]

    def result(self) -> tuple | None:
        events, free, step = self.events, self.free, self.step
        while self.left:
            if not events:
                self.force()
            now, rank = heappop(events)
            if now >= free[rank] and not step(rank, now):
                return None
        return self.rows, self.owners, max(free)

    def step(self, rank: int, now: float) -> bool:
        """Let a free rank choose: an encode, its next task, an encoder backward, or to wait; False to give up."""
        row, place = self.order[rank], self.place[rank]
        task, gap, ready = -1, _NEVER, _NEVER
        if place < len(row):
            task = row[place]
            gap = self.latest[task]
            if not self.missing[task]:
                ready = self.ready[task]
                if ready > gap:
                    gap = ready
            gap += _SLACK - now
            if now + self.tail[task] > self.stop:
                return False
        if self.queue and self.ahead < self.most_ahead and self.start_fitting(rank, now, gap, task, ready <= now):
            return True
        if ready <= now:
            self.start_task(rank, task, now)
            return True
        waiting = self.backwards[rank]
        if waiting:
            when, encode = waiting[0]
            if when > now:
                heappush(self.events, (when, rank))
            elif self.encodes[encode].backward <= gap:
                heappop(waiting)
                self.start_backward(rank, encode, now)
                return True
        if ready != _NEVER:
            heappush(self.events, (ready, rank))
        return True

    def start_fitting(self, rank: int, now: float, gap: float, task: int, ready: bool) -> bool:
        """Start the first encode in the queue that fits, unless the rank's own task can run first without harm."""
        for place, index in enumerate(self.queue[:_WINDOW]):
            encode, owner = self.encodes[index], self.owners[index]
            forward = encode.forward
            if forward > gap or (owner is not None and owner != rank):
                continue
            if owner is None and self.load[rank] + self.s.pair[index] > self.target:
                continue
            if ready:
                due = self.latest[encode.feeds] - (encode.send if rank != self.homes[index] else 0.0)
                if due - now - forward - self.graph.duration[task] > self.eager:
                    return False
            del self.queue[place]
            self.start_forward(rank, index, now)
            return True
        return False

    def start_forward(self, rank: int, index: int, now: float) -> None:
        encode = self.encodes[index]
        end = now + encode.forward
        self.ahead += 1
        if self.owners[index] is None:
            self.owners[index] = rank
            self.load[rank] += self.s.pair[index]
        self.act(rank, self.graph.count + index, end)
        self.arrive(encode.feeds, end + (encode.send if rank != self.homes[index] else 0.0), now)

    def start_task(self, rank: int, task: int, now: float) -> None:
        end = now + self.graph.duration[task]
        self.place[rank] += 1
        self.ahead -= len(self.graph.feeders[task])
        self.act(rank, task, end)
        for successor, delay in self.s.successors[task]:
            self.arrive(successor, end + delay, now)
        for index in self.graph.followers[task]:
            owner = self.owners[index]
            when = end + (self.encodes[index].receive if owner != self.homes[index] else 0.0)
            heappush(self.backwards[owner], (when, index))
            heappush(self.events, (max(when, self.free[owner]), owner))

    def start_backward(self, rank: int, index: int, now: float) -> None:
        self.act(rank, self.graph.backward(index), now + self.encodes[index].backward)

    def act(self, rank: int, action: int, end: float) -> None:
        self.rows[rank].append(action)
        self.free[rank] = end
        self.left -= 1
        heappush(self.events, (end, rank))

    def arrive(self, task: int, when: float, now: float) -> None:
        """Note when one thing that a task waits for is there; wake its rank when it is the last."""
        if when > self.ready[task]:
            self.ready[task] = when
        self.missing[task] -= 1
        if not self.missing[task]:
            rank = self.rank_of[task]
            if self.order[rank][self.place[rank]] == task:
                heappush(self.events, (max(now, self.free[rank]), rank))

    def force(self) -> None:
        """Nothing fits anywhere: start the first encode in the queue, or a backward, where it makes least late."""
        choices = []
        for rank, row in enumerate(self.order):
            latest = self.latest[row[self.place[rank]]] if self.place[rank] < len(row) else _NEVER
            place = next((i for i, e in enumerate(self.queue) if self.owners[e] in (None, rank)), None)
            if place is not None:
                index = self.queue[place]
                encode = self.encodes[index]
                end = self.free[rank] + encode.forward
                there = end + (encode.send if rank != self.homes[index] else 0.0)
                over = self.load[rank] + self.s.pair[index] * (self.owners[index] is None) - self.target
                late = max(0.0, end - latest, over, there - self.latest[encode.feeds])
                choices.append((place, late, there, rank))
            elif self.backwards[rank]:
                when, index = self.backwards[rank][0]
                start = max(self.free[rank], when)
                choices.append((len(self.queue), start + self.encodes[index].backward - latest, start, rank))
        place, _, start, rank = min(choices)
        if place < len(self.queue):
            self.start_forward(rank, self.queue.pop(place), self.free[rank])
        else:
            self.start_backward(rank, heappop(self.backwards[rank])[1], start)
