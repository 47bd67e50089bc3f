"""Plans and costs for the tests of the cost model."""

import re

from hypothesis import settings
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive, parse, registry
from hyperparallel.algebra.skeletons import Layout
from hyperparallel.cost import Costs, PartCost, costs_from_parts, model_from_costs

quick = settings(max_examples=100, deadline=None)

TEXT, INLINE, WARMUP = "1f1b(llm)", "1f1b(vision+llm)", "transpose(vision) >> 1f1b(llm)"
BALANCED = "1f1b(vision+llm, slabs=balanced)"

SHARDED = [name for name, skeleton in registry().items() if skeleton.layout is Layout.SHARDED]


def priced(line, ranks, micro_batches, te, tg, tf, tb, alpha=0.0):
    """Derive a plan for parts that cost this much, and its costs."""
    parts = {"vision": PartCost(te, tg), "llm": PartCost(tf, tb)}
    plan = derive(line, model_from_costs(parse(line), parts, ranks), ranks, micro_batches)
    return plan, costs_from_parts(plan, parts, alpha)


LINES = [
    "{}(vision+llm)",
    "{}(vision+llm)*2",
    "transpose(vision) >> {}(llm)",
    "{}(vision) >> transpose(llm)",
    "{}(vision) >> transpose(audio) >> {}(llm)",
    "transpose(vision) >> {}(audio) >> transpose(llm)",
]
MIXED = ["zb(vision+llm, fold=v)", "zb(vision) >> 1f1b(llm)", "wave(vision) >> transpose(audio) >> zb(llm)"]
ANY = [*dict.fromkeys(line.format(name, name) for line in LINES for name in SHARDED), *MIXED]
"""Every Sharded skeleton in every way, and mixtures."""


def plan_of(line, ranks, micro_batches, frozen=()):
    """Derive a plan for a model of 16 layers in every part that the line names."""
    parts = [part for part in ("vision", "audio", "llm") if part in line]
    return derive(line, ModelSpec.of(dict.fromkeys(parts, 16), frozen), ranks, micro_batches)


@st.composite
def plans_and_costs(draw, same_copies=False):
    """Draw any plan, with whole-number costs that may differ by micro-batch, messages included."""
    ranks, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    line = draw(st.sampled_from(ANY))
    owners = st.lists(st.integers(0, ranks - 1), min_size=micro_batches, max_size=micro_batches)
    if draw(st.booleans()):
        line = re.sub(r"(transpose\(\w+)", lambda match: f"{match[1]}, owner={draw(owners)}".replace(" ", ""), line)
    frozen = draw(st.sets(st.sampled_from([part for part in ("vision", "audio", "llm") if part in line])))
    plan = plan_of(line, ranks, micro_batches, frozen)
    time = st.integers(0, 9)
    times = st.one_of(time, st.lists(time, min_size=micro_batches, max_size=micro_batches))
    kinds = draw(st.sampled_from(["FB", "FBIW"]))  # without I and W, each is half of B
    compute = {(stage, kind): draw(times) for stage in range(plan.placement.stages) for kind in kinds}
    for region in plan.regions if same_copies else ():
        first = plan.regions.index(region) * ranks
        if region.owner is not None:
            compute |= {(first + rank, kind): compute[first, kind] for rank in range(ranks) for kind in kinds}
    size = {(s, kind): draw(times) for s in range(plan.placement.stages) for kind in ("SEND_F", "SEND_B")}
    return plan, Costs(compute, draw(time), draw(time), size)
