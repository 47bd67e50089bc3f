"""Plans, random schedules and an independent checker for the tests of the algebra."""

from collections import Counter, defaultdict
from itertools import product

from hypothesis import settings
from hypothesis import strategies as st

from hyperparallel.algebra import Action, ModelSpec, derive, parse_action, registry
from hyperparallel.algebra.expression import RegionExpr, Schedule
from hyperparallel.algebra.program import COMPUTE, RECEIVES, SENDS
from hyperparallel.algebra.skeletons import Layout

quick = settings(max_examples=100, deadline=None)

SHARDED = [name for name, skeleton in registry().items() if skeleton.layout is Layout.SHARDED]
REPLICATED = [name for name, skeleton in registry().items() if skeleton.layout is Layout.REPLICATED]
LINES = [f"{name}(vision+llm)" for name in SHARDED] + [
    f"{copies}(vision) >> {name}(llm)" for copies, name in product(REPLICATED, SHARDED)
]
"""Every Sharded skeleton of the registry with the encoder inline and under every Replicated one."""


def plan_of(line, ranks=2, micro_batches=2, frozen=(), vision=3, llm=6):
    """Derive a plan for a small model of two parts, or of `llm` alone."""
    counts = {"vision": vision, "llm": llm} if "vision" in line or ">>" in line else {"llm": llm}
    return derive(line, ModelSpec.of(counts, frozen), ranks, micro_batches)


def table(text):
    """Read `0F0 0B0 | 1F0 1B0`: ranks between bars."""
    return tuple(tuple(parse_action(word) for word in row.split()) for row in text.split("|"))


def edited(programs, rank, row):
    """Return the programs with the row of one rank replaced."""
    return tuple(tuple(row) if index == rank else program for index, program in enumerate(programs))


def compute_of(programs):
    """Drop the messages."""
    return tuple(tuple(action for action in program if action.is_compute) for program in programs)


numbers = st.integers(0, 10**9 - 1)
actions = st.builds(Action, numbers, st.sampled_from(sorted(COMPUTE | SENDS | RECEIVES)), numbers)
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,6}", fullmatch=True)


def _values(option):
    named = [word.strip(",") for word in option.expected.split()]
    lists = st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=5).map(tuple)
    legal = [word for word in named if option.accepts(word)]
    return (
        st.one_of(st.sampled_from(legal), lists.filter(option.accepts))
        if option.accepts((1,))
        else st.sampled_from(legal)
    )


@st.composite
def region_exprs(draw):
    """Draw one region with any legal parts, options and count."""
    name = draw(st.sampled_from(list(registry())))
    legal = registry()[name].options
    keys = draw(st.lists(st.sampled_from(list(legal)), unique=True)) if legal else []
    options = tuple((key, draw(_values(legal[key]))) for key in keys)
    parts = tuple(draw(st.lists(words, unique=True, max_size=3)))
    return RegionExpr(name, parts, options, draw(st.integers(1, 5)))


schedules = st.lists(region_exprs(), min_size=1, max_size=4).map(lambda regions: Schedule(tuple(regions)))


@st.composite
def plans(draw, most_ranks=4, most_micro_batches=5):
    """Draw a plan of any line, P, M, owners and frozen parts."""
    ranks, micro_batches = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_micro_batches))
    line = draw(st.sampled_from(LINES))
    if line.split("(")[0] in REPLICATED and draw(st.booleans()):
        owner = draw(st.lists(st.integers(0, ranks - 1), min_size=micro_batches, max_size=micro_batches))
        line = line.replace("(vision)", f"(vision, owner=[{','.join(map(str, owner))}])")
    return plan_of(line, ranks, micro_batches, draw(st.sets(st.sampled_from(["vision", "llm"]))))


def runs_correctly(programs, plan, rendezvous=False):
    """Judge programs by running them on tokens: right work, right values, nothing stuck, nothing left over."""
    return Counter(a for p in compute_of(programs) for a in p) == _work(plan) and _Machine(programs, plan).run(
        rendezvous
    )


def _work(plan):
    """Count every action that a plan must run, from its regions and trainable layers alone."""
    stages = {stage for mb in range(plan.micro_batches) for stage in _path(plan, mb)}
    first = {stage: plan.placement.slabs[stage][1] for stage in stages}
    trains = [index for index, layer in enumerate(plan.model.layers) if layer.trainable]
    return Counter(
        Action(stage, kind, mb)
        for mb in range(plan.micro_batches)
        for stage in _path(plan, mb)
        for kind in "FB"
        if kind == "F" or (trains and trains[0] < first[stage])
    )


def _path(plan, mb):
    path = []
    for index, region in enumerate(plan.regions):
        base = index * plan.ranks
        path += range(base, base + plan.ranks) if region.owner is None else [base + region.owner[mb]]
    return path


class _Machine:
    """Ranks that hold named values and exchange them over first-in-first-out channels."""

    def __init__(self, programs, plan):
        self.programs, self.ranks = programs, plan.ranks
        self.path = [_path(plan, mb) for mb in range(plan.micro_batches)]
        self.values = [set() for _ in programs]
        self.channels = defaultdict(list)
        self.at = [0] * len(programs)

    def run(self, rendezvous):
        while any(self.at[rank] < len(program) for rank, program in enumerate(self.programs)):
            verdicts = [self.step(rank, rendezvous) for rank in range(self.ranks)]
            if False in verdicts or all(verdict is None for verdict in verdicts):
                return False
        return not any(self.channels.values())

    def current(self, rank):
        return self.programs[rank][self.at[rank]] if self.at[rank] < len(self.programs[rank]) else None

    def step(self, rank, rendezvous):
        """Run one action: True when it ran, None when it waits, False when it is wrong."""
        action = self.current(rank)
        if action is None:
            return None
        stage, kind, mb = action
        path = self.path[mb]
        if stage not in path:
            return False
        place = path.index(stage)
        other = place + (1 if kind in ("F", "SEND_F", "RECV_B", "B") else -1)
        peer = path[other] if 0 <= other < len(path) else None
        values = self.values[rank]
        if kind in "FB":
            result, needs = ("y", stage, mb), [] if place == 0 else [("x", stage, mb)]
            if kind == "B":
                result, needs = ("dx", stage, mb), [("y", stage, mb)] + [("dy", stage, mb)] * (peer is not None)
            if stage % self.ranks != rank or not values.issuperset(needs):
                return False
            values.add(result)
            target = place + (1 if kind == "F" else -1)
            if 0 <= target < len(path) and path[target] % self.ranks == rank:
                values.add(("x" if kind == "F" else "dy", path[target], mb))
        elif peer is None or peer % self.ranks == rank or stage % self.ranks != rank:
            return False
        elif kind.startswith("SEND"):
            token, end = ("x", "RECV_F") if kind == "SEND_F" else ("dy", "RECV_B")
            if ("y" if kind == "SEND_F" else "dx", stage, mb) not in values:
                return False
            if rendezvous:
                if self.current(peer % self.ranks) != (peer, end, mb):
                    return None
                self.values[peer % self.ranks].add((token, peer, mb))
                self.at[peer % self.ranks] += 1
            else:
                self.channels[rank, peer % self.ranks].append((token, peer, mb))
        elif rendezvous:
            return None  # its SEND moves both ends
        else:
            channel = self.channels[peer % self.ranks, rank]
            if not channel:
                return None
            token = channel.pop(0)
            if token != ("x" if kind == "RECV_F" else "dy", stage, mb):
                return False
            values.add(token)
        self.at[rank] += 1
        return True
