"""Whatever line and costs: a planned plan is right, as fast as it says, and no slower than the published one."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive, order, validate
from hyperparallel.cost import Costs, lower_bound, simulate
from hyperparallel.errors import ScheduleError
from hyperparallel.planner import Settings, plan_line

sys.path.insert(0, str(Path(__file__).parents[1] / "algebra"))
from algebra_machine import runs_correctly  # noqa: E402

LLMS = [
    "1f1b(llm)",
    "gpipe(llm)",
    "1f1b(llm)*2",
    "wave(llm)",
    "zb(llm)",
    "zb(llm, fold=v)",
    "gpipe(audio) >> 1f1b(llm)",
]
OPEN = ["owner=balanced, place=fill", "place=fill", "owner=balanced"]


def model_of(line, frozen):
    return ModelSpec.of({part: 8 for part in ("vision", "audio", "llm") if part in line}, frozen)


def priced(compute, alpha=0.0):
    """Price a plan by stage and kind; pieces have equal shares."""

    def costs_of(plan):
        split, stages = plan.placement.split, range(plan.placement.stages)
        shares = [(1 / split,) * split] * plan.micro_batches if split > 1 else ()
        table = {(stage, kind): compute(stage // plan.ranks, kind) for stage in stages for kind in "FB"}
        return Costs(table, alpha, shares=shares)

    return costs_of


@st.composite
def cases(draw):
    ranks, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    split = draw(st.sampled_from([1, 1, 2, 3]))
    options = draw(st.sampled_from(OPEN)) + (f", split={split}" if split > 1 else "")
    line = f"transpose(vision, {options}) >> {draw(st.sampled_from(LLMS))}"
    frozen = draw(st.sampled_from([(), ("vision",), ("llm",)]))
    encodes = draw(st.lists(st.integers(0, 20), min_size=micro_batches, max_size=micro_batches))
    backbone = {kind: draw(st.integers(0, 8)) for kind in "FB"}
    costs_of = priced(lambda region, kind: encodes if region == 0 else backbone[kind], draw(st.integers(0, 4)))
    return line, model_of(line, frozen), ranks, micro_batches, costs_of


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_planned_line_is_right_and_never_slower_than_the_published_one(case):
    line, model, ranks, micro_batches, costs_of = case
    plan, certificate = plan_line(*case, Settings(engine="list"))
    validate(plan)
    assert runs_correctly(plan.programs, plan) and runs_correctly(plan.programs, plan, rendezvous=True)
    assert set(order(plan).topological) == set(order(plan).events)
    found = simulate(plan, costs_of(plan)).step_time
    assert found == pytest.approx(certificate.step_time, abs=1e-9)
    assert lower_bound(plan, costs_of(plan)) <= found + 1e-9 and certificate.bound <= found + 1e-9
    published = derive(
        line.replace("owner=balanced", "owner=roundrobin").replace("fill", "warmup"), model, ranks, micro_batches
    )
    assert found <= simulate(published, costs_of(published)).step_time + 1e-9


def test_the_same_input_gives_the_same_plan():
    line = "transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"
    costs_of = priced(lambda region, kind: [5.0, 0.0, 9.0, 3.0, 12.0, 1.0] if region == 0 else 4.0)
    made = [
        plan_line(line, model_of(line, ()), 3, 6, costs_of, Settings(engine=engine, work_limit=0.5, seed=3))
        for engine in ("auto", "auto", "list", "list")
    ]
    assert made[0] == made[1] and made[2] == made[3]


def test_given_owners_stay():
    line = "transpose(vision, owner=[2,1,0,0], place=fill) >> 1f1b(llm)"
    plan, _ = plan_line(line, model_of(line, ()), 3, 4, priced(lambda *_: 4.0), Settings(engine="list"))
    assert plan.owner == (2, 1, 0, 0)


def test_messages_follow_the_planned_times():
    """A message that will be ready late does not stand before one that is ready early."""
    line = "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
    costs_of = priced(lambda region, _: 12.0 if region == 0 else 4.0)
    plan, _ = plan_line(line, model_of(line, ("vision",)), 4, 8, costs_of)
    spans = {
        span.action: span
        for row in simulate(plan, priced(lambda region, _: 12.0 if region == 0 else 4.0)(plan)).spans
        for span in row
    }
    ready = [
        spans[plan.placement.ends[a]._replace(kind=a.kind[-1])].end
        for a in plan.programs[0]
        if a.kind.startswith("RECV")
    ]
    assert ready == sorted(ready)


@pytest.mark.parametrize(
    "line, said",
    [
        ("1f1b(vision) >> transpose(llm, place=fill)", "are for the first of several regions"),
        ("transpose(vision+llm, owner=balanced)", "are for the first of several regions"),
        ("1f1b(vision) >> transpose(llm, split=2)", "it needs the first of several regions"),
        ("transpose(vision, owner=[0,9], place=fill) >> 1f1b(llm)", "owner= gives micro-batch 1 to rank 9"),
    ],
)
def test_lines_that_leave_open_what_cannot_be_planned_are_refused(line, said):
    with pytest.raises(ScheduleError) as error:
        plan_line(line, model_of(line, ()), 2, 2, priced(lambda *_: 4.0))
    assert said in str(error.value)


def test_a_line_that_leaves_nothing_open_has_no_certificate():
    line = "transpose(vision) >> 1f1b(llm)"
    plan, certificate = plan_line(line, model_of(line, ()), 2, 2, priced(lambda *_: 4.0))
    assert certificate is None and plan == derive(line, model_of(line, ()), 2, 2)


def test_without_a_planner_such_a_line_says_what_it_needs():
    with pytest.raises(ScheduleError, match="decided by the planner, which needs costs"):
        derive("transpose(vision, place=fill) >> 1f1b(llm)", model_of("vision llm", ()), 2, 2)
