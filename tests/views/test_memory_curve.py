"""The table and the figure of live bytes: peaks where they are, every moment at its time, the same bytes each time."""

import re

import pytest
from views_cases import planned

from hyperparallel import ModelSpec, derive, parse, simulate
from hyperparallel.cost import PartCost, costs_from_parts, model_from_costs, parse_part_costs
from hyperparallel.cost.memory_bytes import memory_curve, peak_of
from hyperparallel.cost.memory_plan import plan_stages
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.errors import HyperParallelError
from hyperparallel.planner import Settings, plan_line
from hyperparallel.views.memory_curve import (
    MAX_MOMENTS,
    draw_memory,
    in_time,
    memory_data,
    memory_table,
    render_memory,
    times_of,
)

TRANSPOSED, INLINE = "transpose(vision) >> 1f1b(llm)", "1f1b(vision+llm)"
FILL = "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
SPLIT = "transpose(vision, owner=balanced, place=fill, split=2) >> zb(llm)"
TRAINED = "vision=12/24,llm=4/8"
LAYER = LayerBytes(weights=10, trained=10, largest=6, constants=3, saved=100, forward=0, backward=40)
MANY_WEIGHTS = LayerBytes(weights=10_000, trained=10_000, largest=10_000, constants=0, saved=1, forward=0, backward=1)


def followed(line, ranks=4, micro_batches=8, cost=TRAINED, layer=LAYER):
    """Return plan, timeline and the curves of all ranks."""
    schedule, parts = parse(line), parse_part_costs(cost)
    model = model_from_costs(schedule, parts, ranks, dict.fromkeys(parts, ranks))

    def price(plan):
        return costs_from_parts(plan, parts)

    plan = plan_line(line, model, ranks, micro_batches, price, Settings(engine="list")).plan
    count = len(model.layers)
    stages, batch = plan_stages(plan, [layer] * count, [7] * (count - 1) + [0], [{"ids": 2}] * count)
    curves = [memory_curve(plan, rank, stages, batch) for rank in range(ranks)]
    return plan, simulate(plan, price(plan)), curves


@pytest.mark.parametrize("line", [INLINE, TRANSPOSED, FILL, SPLIT])
def test_a_row_says_the_peak_and_what_it_adds_up_from(line):
    _, _, curves = followed(line)
    rows = memory_data(curves)
    assert len(rows) == 4
    for row, curve in zip(rows, curves, strict=True):
        assert row["peak"] == max(live.total for _, live in curve) == sum(row["live"].values())
        at = [live for action, live in curve if str(action or "end") == row["at"]]
        assert [live.total for live in at] == [row["peak"]]


def test_table():
    million = LAYER._replace(**{name: 10**6 * value for name, value in LAYER._asdict().items()})
    _, _, curves = followed("gpipe(llm)", 2, 2, "llm=4/8", million)
    lines = memory_table(curves).splitlines()
    assert lines[1].split() == [
        "rank",
        "peak",
        "at",
        "parameters",
        "moments",
        "inputs",
        "activations",
        "carries",
        "scratch",
    ]
    # Rank 0's first backward: 13 still, 20 moments, two micro-batches kept, 40 of its own.
    assert lines[2].split() == ["0", "273.00", "0B0", "13.00", "20.00", "0.00", "200.00", "0.00", "40.00"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_the_update_can_be_the_peak():
    plan, timeline, curves = followed("1f1b(llm)", 2, 2, "llm=4/8", MANY_WEIGHTS)
    assert [row["at"] for row in memory_data(curves)] == ["end", "end"]
    assert render_memory(plan, timeline, curves, "x.svg")


@pytest.mark.parametrize("line", [INLINE, TRANSPOSED, FILL, SPLIT])
def test_actions_are_at_the_times_of_the_timeline_and_messages_between(line):
    _, timeline, curves = followed(line)
    for curve, row in zip(curves, timeline.spans, strict=True):
        times = times_of(curve, row, timeline.step_time)
        named = {action: when for (action, _), when in zip(curve, times, strict=True)}
        assert all(named[action] == (start, end) for action, start, end in row)
        assert named[None] == (timeline.step_time, timeline.step_time)
        ends = {end for _, _, end in row} | {0.0}
        messages = [when for action, when in named.items() if action and action.kind not in "FBIW"]
        assert messages and all(start == end and start in ends for start, end in messages)
        assert times == sorted(times)


def test_between_actions_scratch_is_gone_and_the_rest_stays():
    _, timeline, curves = followed(INLINE, 4, 4)
    curve, row = curves[3], timeline.spans[3]
    moments = in_time(curve, times_of(curve, row, timeline.step_time))
    times = [time for time, _ in moments]
    assert times == sorted(set(times)) and times[-1] == timeline.step_time
    first, after = row[0].start, [one for one in row if one.action.kind == "B"][0]
    by_time = dict(moments)
    assert by_time[after.start].scratch == 40 and by_time[after.end].scratch == 0
    assert min(times) == 0.0 < first  # what stands still is there before anything runs
    assert by_time[0.0].parameters == 13


@pytest.mark.parametrize(("suffix", "head"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_same_bytes_each_time(suffix, head):
    plan, timeline, curves = followed(FILL)
    content = render_memory(plan, timeline, curves, f"x{suffix}", "ms")
    assert content.startswith(head) and content == render_memory(plan, timeline, curves, f"y{suffix}", "ms")
    assert not re.search(rb"<dc:date>|20\d\d-\d\d-\d\d", content[:2000])


def drawn(line, ranks, micro_batches):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plan, timeline, curves = followed(line, ranks, micro_batches)
    drawing = draw_memory(Figure, plan, timeline, curves, "ms")
    FigureCanvasAgg(drawing).draw()
    return drawing, timeline, curves


@pytest.mark.parametrize("line", [TRANSPOSED, SPLIT])
def test_a_panel_per_rank_with_the_peak_where_it_is(line):
    drawing, timeline, curves = drawn(line, 3, 6)
    assert len(drawing.axes) == 3
    for axes, curve, row in zip(drawing.axes, curves, timeline.spans, strict=True):
        peak = peak_of(curve)
        (dot,) = [drawn_line for drawn_line in axes.lines if drawn_line.get_marker() == "o"]
        ((x, y),) = dot.get_xydata()
        starts = {action: start for action, start, _ in row}
        assert (x, y) == (pytest.approx(starts[peak.at]), pytest.approx(peak.bytes / 1e6))
        assert any(str(peak.at) in text.get_text() for text in axes.texts)
        tops = [path.vertices[:, 1].max() for areas in axes.collections for path in areas.get_paths()]
        assert max(tops) == pytest.approx(peak.bytes / 1e6)
        assert axes.get_ylim() == drawing.axes[0].get_ylim() and axes.get_xlim() == drawing.axes[0].get_xlim()


def test_the_legend_has_what_is_drawn_and_nothing_leaves_the_page():
    drawing, _, curves = drawn(INLINE, 16, 16)
    words = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert words == ["parameters", "moments", "inputs", "activations", "carries", "gradients", "scratch"]
    page = drawing.bbox
    texts = [*drawing.texts, *drawing.legends[0].get_texts(), *(text for axes in drawing.axes for text in axes.texts)]
    boxes = [text.get_window_extent() for text in texts]
    assert not [box for box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > page.x1 or box.y1 > page.y1]
    beside = [axes.texts[0].get_window_extent() for axes in drawing.axes]
    assert all(upper.y0 >= lower.y1 for upper, lower in zip(beside, beside[1:], strict=False))


@pytest.mark.parametrize(
    ("ranks", "moments", "path", "said"),
    [
        (2, MAX_MOMENTS, "x.svg", "too many for a figure of the memory"),
        (2, 3, "x.pdf", "a figure ends in"),
    ],
)
def test_what_cannot_be_drawn(ranks, moments, path, said):
    plan, _, timeline = planned("1f1b(llm)", ranks, 2, "llm=4/8")
    _, _, curves = followed("1f1b(llm)", ranks, 2, "llm=4/8")
    with pytest.raises(HyperParallelError, match=said):
        render_memory(plan, timeline, [[curves[0][0]] * moments] * ranks, path)


def test_costs_of_nothing_can_be_drawn():
    parts = {"llm": PartCost(0, 0)}
    plan = derive("gpipe(llm)", ModelSpec.of({"llm": 1}), 1, 1)
    stages, batch = plan_stages(plan, [LAYER], [0], [{}])
    timeline = simulate(plan, costs_from_parts(plan, parts))
    assert render_memory(plan, timeline, [memory_curve(plan, 0, stages, batch)], "x.svg").startswith(b"<?xml")
