"""Plans and costs for the tests of the cost model."""

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


@st.composite
def plans_and_costs(draw, same_copies=False):
    """Draw any plan, with whole-number costs that may differ by micro-batch, messages included."""
    ranks, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    line = draw(st.sampled_from(["{}(vision+llm)", "transpose(vision) >> {}(llm)"])).format(
        draw(st.sampled_from(SHARDED))
    )
    owners = st.lists(st.integers(0, ranks - 1), min_size=micro_batches, max_size=micro_batches)
    if draw(st.booleans()):
        line = line.replace("transpose(vision)", f"transpose(vision, owner={draw(owners)})".replace(" ", ""))
    frozen = draw(st.sets(st.sampled_from(["vision", "llm"])))
    plan = derive(line, ModelSpec.of({"vision": 2, "llm": 5}, frozen), ranks, micro_batches)
    time = st.integers(0, 9)
    times = st.one_of(time, st.lists(time, min_size=micro_batches, max_size=micro_batches))
    compute = {(stage, kind): draw(times) for stage in range(plan.placement.stages) for kind in "FB"}
    if same_copies and ">>" in line:
        compute |= {(rank, kind): compute[0, kind] for rank in range(ranks) for kind in "FB"}
    size = {(s, kind): draw(times) for s in range(plan.placement.stages) for kind in ("SEND_F", "SEND_B")}
    return plan, Costs(compute, draw(time), draw(time), size)
