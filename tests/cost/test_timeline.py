from itertools import product
from math import ceil

import pytest
from cost_cases import BALANCED, INLINE, TEXT, WARMUP, plans_and_costs, priced, quick
from hypothesis import given

from hyperparallel.algebra import Action, ModelSpec, check_table, derive, from_csv, order
from hyperparallel.algebra.order import Bwd, Coll, Fwd, WeightGrad
from hyperparallel.cost import Costs, simulate
from hyperparallel.cost.timeline import play

GRID = [
    (p, m, te, tg, tf, tb)
    for p, m in [(1, 1), (1, 4), (2, 2), (2, 5), (3, 7), (4, 4), (4, 8), (5, 9), (8, 16)]
    for te, tg, (tf, tb) in product([0, 1, 3, 12.5], [0, 2, 7, 24], [(4, 8), (1, 1), (3, 2.5)])
]


def closed_form(line, p, m, te, tg, tf, tb):
    """Design, section 4."""
    x = tf + tb
    if line == TEXT:
        return (m + p - 1) * x
    if line == INLINE:
        return m * (te + tg + x) + (p - 1) * (max(0, tf - tg) + max(0, tb - te))
    return (m + p - 1) * x + ceil(m / p) * (te + tg)


@pytest.mark.parametrize("line", [TEXT, INLINE, WARMUP])
def test_step_time_is_the_closed_form_on_a_grid(line):
    for sizes in GRID:
        assert simulate(*priced(line, *sizes)).step_time == pytest.approx(closed_form(line, *sizes), rel=1e-12), sizes


TABLE = [  # line, P, M, te, tg, step time; tf = 4, tb = 8
    (TEXT, 4, 4, 12, 0, 84),
    (INLINE, 4, 4, 12, 0, 108),
    (WARMUP, 4, 4, 12, 0, 96),
    (TEXT, 4, 8, 12, 0, 132),
    (INLINE, 4, 8, 12, 0, 204),
    (WARMUP, 4, 8, 12, 0, 156),
    (TEXT, 4, 8, 12, 24, 132),
    (INLINE, 4, 8, 12, 24, 384),
    (WARMUP, 4, 8, 12, 24, 204),
    (TEXT, 4, 16, 12, 0, 228),
    (INLINE, 4, 16, 12, 0, 396),
    (BALANCED, 4, 16, 12, 0, 285),
    (WARMUP, 4, 16, 12, 0, 276),
]


@pytest.mark.parametrize("line, p, m, te, tg, step_time", TABLE)
def test_the_numbers_of_the_design(line, p, m, te, tg, step_time):
    assert simulate(*priced(line, p, m, te, tg, 4, 8)).step_time == pytest.approx(step_time, rel=1e-12)


def event_of(plan, action):
    """The event of a compute action."""
    kinds = {"F": Fwd, "B": Bwd, "I": Bwd, "W": WeightGrad}
    return kinds[action.kind](action.stage // plan.ranks, action.stage % plan.ranks, action.mb)


def longest_path(plan, costs):
    """End of every event of the order graph, by one pass over its edges in topological order."""
    graph, action_of = order(plan), {event_of(plan, action): action for row in plan.compute for action in row}
    before = {event: [] for event in graph.events}
    activations = set()
    for source, target, kind in graph.edges:
        before[target].append(source)
        if kind == "Activation":
            activations.add(source)
    end = {}
    for event in graph.topological:
        duration = 0
        if event in action_of:
            duration = costs.duration(action_of[event])
        elif isinstance(event, Coll):
            left, right = event.seam
            forward = event in activations
            duration = costs.duration(
                Action(left, "SEND_F", event.mb) if forward else Action(right, "SEND_B", event.mb)
            )
        end[event] = max((end[source] for source in before[event]), default=0) + duration
    return end


@quick
@given(plans_and_costs())
def test_the_timeline_is_the_longest_path_of_the_order_graph(case):
    plan, costs = case
    end, timeline = longest_path(plan, costs), simulate(plan, costs)
    for rank, spans in enumerate(timeline.spans):
        assert tuple(span.action for span in spans) == plan.compute[rank]
        for (stage, kind, mb), start, finish in spans:
            assert finish == end[event_of(plan, Action(stage, kind, mb))]
            assert finish - start == costs.duration(Action(stage, kind, mb))
    assert timeline.step_time == max(span.end for spans in timeline.spans for span in spans)


@quick
@given(plans_and_costs())
def test_bubble_and_busy_fill_the_step(case):
    plan, costs = case
    timeline = simulate(plan, costs)
    for rank in range(plan.ranks):
        assert timeline.busy[rank] == sum(costs.duration(action) for action in plan.compute[rank])
        assert timeline.bubble[rank] == timeline.step_time - timeline.busy[rank] >= 0
        spill = max(0, timeline.encode_time[rank] - timeline.warmup_idle[rank])
        assert timeline.spill[rank] == spill


def test_every_figure_of_the_paper_s_example_by_hand():
    timeline = simulate(*priced(WARMUP, 4, 8, 12, 0, 4, 8))
    assert timeline.busy == (120, 120, 120, 120)
    assert timeline.bubble == (36, 36, 36, 36)
    assert timeline.warmup_idle == (0, 4, 8, 12)
    assert timeline.encode_time == (24, 24, 24, 24)
    assert timeline.spill == (24, 20, 16, 12)
    assert timeline.peak_live == (4, 3, 2, 1)
    assert timeline.spans[0][2] == (Action(4, "F", 0), 24, 28)


def test_spill_is_zero_where_the_warmup_hides_the_encodes():
    timeline = simulate(*priced(WARMUP, 4, 4, 6, 0, 4, 8))
    assert timeline.spill == (6, 2, 0, 0)


def test_messages_delay_the_other_rank_only_by_hand():
    """An activation travels for 2, a gradient for 3; the sender goes on at once."""
    plan = derive(TEXT, ModelSpec.of({"llm": 2}), 2, 2)
    compute = {(0, "F"): 1, (1, "F"): 1, (0, "B"): 2, (1, "B"): 2}
    costs = Costs(compute, alpha=1, beta=0.5, message_bytes={(0, "SEND_F"): 2, (1, "SEND_B"): [4, 4]})
    spans = simulate(plan, costs).spans
    assert [tuple(span[1:]) for span in spans[0]] == [(0, 1), (1, 2), (9, 11), (12, 14)]
    assert [tuple(span[1:]) for span in spans[1]] == [(3, 4), (4, 6), (6, 7), (7, 9)]
    assert simulate(plan, costs).warmup_idle == (0, 3)


def test_alpha_is_paid_on_the_way_down_and_on_the_way_up():
    """P = 2, M = 2: rank 1 works without pause from tf + alpha on; 2 alpha on top of the text-only time."""
    assert simulate(*priced(TEXT, 2, 2, 0, 0, 4, 8, alpha=0.5)).step_time == 3 * 12 + 1
    assert simulate(*priced(TEXT, 1, 2, 0, 0, 4, 8, alpha=5)).step_time == 24


def test_costs_by_micro_batch():
    plan = derive(TEXT, ModelSpec.of({"llm": 1}), 1, 3)
    spans = simulate(plan, Costs({(0, "F"): [1, 2, 4], (0, "B"): 1})).spans[0]
    assert [tuple(span[1:]) for span in spans] == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 9), (9, 10)]


def test_a_split_backward_sends_its_gradient_after_i():
    placement, _ = check_table(from_csv("0F0,0B0\n1F0,1I0,1W0\n"), 2, 1)
    compute = from_csv("0F0,0B0\n1F0,1I0,1W0\n")
    costs = Costs({(0, "F"): 1, (1, "F"): 1, (0, "B"): 4, (1, "B"): 4})
    spans = play(compute, placement, costs)
    assert [tuple(span[1:]) for span in spans[0]] == [(0, 1), (4, 8)]
    assert [tuple(span[1:]) for span in spans[1]] == [(1, 2), (2, 4), (4, 6)]
