"""Plans, random schedules and an independent checker for the tests of the algebra."""

import re
from functools import lru_cache

from hypothesis import settings
from hypothesis import strategies as st

from hyperparallel.algebra import Action, ModelSpec, derive, parse_action, registry
from hyperparallel.algebra.expression import RegionExpr, Schedule
from hyperparallel.algebra.program import COMPUTE, RECEIVES, SENDS, Piece
from hyperparallel.algebra.skeletons import Layout

quick = settings(max_examples=100, deadline=None)

SHARDED = [name for name, skeleton in registry().items() if skeleton.layout is Layout.SHARDED]
REPLICATED = [name for name, skeleton in registry().items() if skeleton.layout is Layout.REPLICATED]
FOLDING = [name for name in SHARDED if "fold" in registry()[name].options]

WAYS = {
    "alone": "{}(vision+llm)",
    "twice": "{}(vision+llm)*2",
    "three times": "{}(vision+llm)*3",
    "transposed in front": "transpose(vision) >> {}(llm)",
    "transposed in pieces": "transpose(vision, split=3) >> {}(llm)",
    "two encoders in one transpose": "transpose(vision+audio) >> {}(llm)",
    "transposed at the end": "{}(vision) >> transpose(llm)",
    "transposed in the middle": "{}(vision) >> transpose(audio) >> {}(llm)",
    "between two transposes": "transpose(vision) >> {}(audio) >> transpose(llm)",
}
"""Every way to use a Sharded skeleton; another registered Replicated one takes the place of `transpose`."""

MIXED = [
    "transpose(vision+llm)",
    "zb(vision) >> 1f1b(llm)",
    "1f1b(vision) >> gpipe(llm)",
    "wave(vision) >> 1f1b(llm)",
    "gpipe(vision) >> zb(llm, fold=v)",
    "zb(vision, fold=v) >> transpose(audio) >> 1f1b(llm)*2",
]
LINES = [
    *dict.fromkeys(
        way.replace("transpose", copies).format(name, name)
        for way in WAYS.values()
        for copies in REPLICATED
        for name in SHARDED
    ),
    *(f"{name}(vision+llm, fold=v){count}" for name in FOLDING for count in ("", "*2")),
    *MIXED,
]
"""Every skeleton of the registry in every way, and mixtures."""

SIZES = [(ranks, micro_batches) for ranks in range(1, 6) for micro_batches in (1, 2, 3, 5, 8, 16)]


def parts_of(line):
    """List the model parts that a line names."""
    return tuple(part for part in ("vision", "audio", "llm") if re.search(rf"\b{part}\b", line))


def frozen_sets(line):
    """List nothing, the first part, the last part and all parts of a line."""
    parts = parts_of(line)
    return [(), parts[:1], parts[-1:], parts]


@lru_cache(maxsize=2000)
def plan_of(line, ranks=2, micro_batches=2, frozen=(), layers=20):
    """Derive a plan for a model with so many layers in every part that the line names."""
    return derive(line, ModelSpec.of(dict.fromkeys(parts_of(line), layers), frozen), ranks, micro_batches)


def placement_name(plan):
    """Return what `check_table` calls the placement of a plan; None where it has no name for it."""
    sharded = [index for index, region in enumerate(plan.regions) if region.owner is None]
    names = {frozenset(): "loop", frozenset(sharded[1::2]): "v"}
    if not sharded and len(set(plan.owner)) < plan.ranks:
        return None  # blank rows
    return names.get(plan.placement.reflected if plan.ranks > 1 else frozenset())


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
units = numbers | st.builds(Piece, numbers, numbers)
actions = st.builds(Action, numbers, st.sampled_from(sorted(COMPUTE | SENDS | RECEIVES)), units)
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,6}", fullmatch=True)


def _values(option):
    named = [word.strip(",") for word in option.expected.split()]
    lists = st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=5).map(tuple)
    legal = [word for word in named if option.accepts(word)]
    if not legal:
        return st.integers(1, 64).filter(option.accepts)
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
    owners = st.lists(st.integers(0, ranks - 1), min_size=micro_batches, max_size=micro_batches)

    def with_owners(match):
        return f"{match[0][:-1]}, owner=[{','.join(map(str, draw(owners)))}])" if draw(st.booleans()) else match[0]

    line = draw(st.sampled_from(LINES))
    line = re.sub(rf"({'|'.join(REPLICATED)})\([^)]*\)", with_owners, line)
    return plan_of(line, ranks, micro_batches, tuple(sorted(draw(st.sets(st.sampled_from(parts_of(line)))))))
