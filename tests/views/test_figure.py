"""The figure: the same bytes each time, true widths, text that overlaps nothing, and a sentence for every mistake."""

import builtins
import itertools
import re

import pytest
from views_cases import ALL, BOTH_ENDS, INLINE, TEXT, TRANSPOSED, planned

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cost import Costs, simulate
from hyperparallel.errors import HyperParallelError
from hyperparallel.views import figure as public
from hyperparallel.views.colours import KINDS, hues, shade, shares
from hyperparallel.views.figure import Entry, _draw, render
from hyperparallel.views.live import live_curve
from hyperparallel.views.rows import is_stacked
from hyperparallel.views.stacked import highest, stack

COST = "vision=12/24,llm=4/8,gen=8/12"


def entries(lines, ranks=4, micro_batches=8, cost=COST):
    return [(line, *planned(line, ranks, micro_batches, cost)) for line in lines]


def drawn(lines, *size):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = _draw(Figure, [Entry(*entry) for entry in entries(lines, *size)], "ms")
    FigureCanvasAgg(drawing).draw()
    return drawing


@pytest.mark.parametrize(("suffix", "head"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".SVG", b"<?xml")])
def test_the_same_bytes_each_time(tmp_path, suffix, head):
    path = tmp_path / f"x{suffix}"
    public(entries([INLINE, TRANSPOSED]), path)
    first = path.read_bytes()
    assert first.startswith(head) and render(entries([INLINE, TRANSPOSED]), path) == first
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_no_date_and_small():
    content = render(entries([INLINE, TRANSPOSED], cost="vision=12/0,llm=4/8"), "x.svg").decode()
    assert len(content) < 150_000 and "<dc:date>" not in content
    assert not re.search(r"20\d\d-\d\d", content)


@pytest.mark.parametrize("line", ALL)
def test_every_bar_is_where_and_as_long_as_its_action(line):
    axes = drawn([line], 3, 5).axes[0]
    plan, _, timeline = planned(line, 3, 5, COST)
    for rank, row in enumerate(timeline.spans):
        work = 0.0
        for bars in axes.collections:
            for path in bars.get_paths():
                left, low, right, high = path.get_extents().extents
                whole_row = (low, high) == pytest.approx((rank + 0.06, rank + 0.68))
                if whole_row and bars.get_facecolor()[0][:3].std() > 0.01:  # not the grey behind it
                    work += right - left
                    assert any(s.start - 1e-6 <= left and right <= s.end + 1e-6 for s in row)
        assert work == pytest.approx(timeline.busy[rank])


@pytest.mark.parametrize(
    ("lines", "ranks", "micro_batches"),
    [(ALL[:4], 4, 8), (ALL[5:], 4, 8), ([INLINE, TRANSPOSED], 16, 128), ([BOTH_ENDS], 2, 40), ([TEXT], 1, 1)],
)
def test_no_text_overlaps_another_or_leaves_the_picture(lines, ranks, micro_batches):
    drawing = drawn(lines, ranks, micro_batches)
    texts = [text for axes in drawing.axes for text in axes.texts]
    for axes in drawing.axes:  # matplotlib keeps labels outside the limits too, and draws them not
        texts += [label for label in axes.get_xticklabels() if 0 <= label.get_position()[0] <= axes.get_xlim()[1]]
        texts += axes.get_yticklabels()
    texts += drawing.legends[0].get_texts()
    texts += [axes.xaxis.label for axes in drawing.axes]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text() and t.get_visible()]
    page = drawing.bbox
    assert not [one for one, b in boxes if b.x0 < 0 or b.y0 < 0 or b.x1 > page.x1 or b.y1 > page.y1]
    boxes.sort(key=lambda item: item[1].x0)
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        if b.x0 < a.x1 - 0.5 and b.y0 < a.y1 - 0.5 and a.y0 < b.y1 - 0.5:
            raise AssertionError(f"{one!r} overlaps {other!r}")


def test_a_very_long_label_is_cut():
    label = "x" * 500
    content = render([(label, *planned(TEXT, 2, 2, COST))], "x.svg")
    assert b"x" * 200 not in content and "…" in content.decode()


def test_thin_bars_become_shares():
    timelines = [planned(line, 16, 128, COST)[2] for line in (INLINE, TRANSPOSED)]
    longest = max(timeline.step_time for timeline in timelines)
    assert is_stacked(timelines[1], longest, 700) and not is_stacked(planned(TEXT, 4, 8, COST)[2], 132, 700)
    words = [text.get_text() for text in drawn([INLINE, TRANSPOSED], 16, 128).legends[0].get_texts()]
    assert "thin bars: height = share of time" in words


def test_columns_keep_all_the_time():
    timeline = planned(TRANSPOSED, 4, 64, COST)[2]
    for row, busy in zip(timeline.spans, timeline.busy, strict=True):
        pieces = [(("part", action.kind), start, end - start) for action, start, end in row]
        by_look = stack(pieces, timeline.step_time, 37)
        columns = [sum(heights) for heights in zip(*by_look.values(), strict=True)]
        assert max(columns) <= 1 + 1e-9
        assert sum(columns) * timeline.step_time / 37 == pytest.approx(busy)
    assert highest([(0.0, 1), (2.5, 3), (2.6, 0), (9.0, 2), (10.0, 0)], 10.0, 5) == [1, 3, 0, 0, 2]


@pytest.mark.parametrize("line", ALL)
def test_the_live_curve_peaks_at_the_peak_live_count(line):
    plan, _, timeline = planned(line, 3, 5, COST)
    for row, peak in zip(timeline.spans, timeline.peak_live, strict=True):
        curve = live_curve(row, plan.placement)
        assert max(live for _, live in curve) == peak and curve[0][0] == 0.0 and curve[-1][1] == 0


@pytest.mark.parametrize(
    ("cost", "forward", "backward"),
    [
        ("vision=12/0,llm=4/8", [("vision", 0.75), ("llm", 0.25)], [("llm", 1.0)]),
        ("vision=12/24,llm=4/8", [("vision", 0.75), ("llm", 0.25)], [("llm", 0.25), ("vision", 0.75)]),
        ("vision=0/0,llm=4/8", [("llm", 1.0)], [("llm", 1.0)]),
    ],
)
def test_a_slab_of_two_parts_is_split_by_their_costs(cost, forward, backward):
    plan, costs, _ = planned(INLINE, 4, 8, cost)
    split = shares(plan, costs, 0)
    for kind, expected in (("F", forward), ("B", backward)):
        assert [part for part, _ in split[kind]] == [part for part, _ in expected]
        assert [share for _, share in split[kind]] == pytest.approx([share for _, share in expected])
    assert shares(plan, costs, 1) == {"F": [("llm", 1.0)], "B": [("llm", 1.0)]}


def test_costs_that_say_nothing_split_alike():
    model = ModelSpec.of({"a": 1, "b": 1})
    plan = derive("1f1b(a+b)", model, 1, 1)
    assert shares(plan, Costs({(0, "F"): 0.0, (0, "B"): 0.0}), 0)["F"] == [("a", 0.5), ("b", 0.5)]
    render(
        [("x", plan, Costs({(0, "F"): 0.0, (0, "B"): 0.0}), simulate(plan, Costs({(0, "F"): 0, (0, "B"): 0})))], "x.svg"
    )


def lightness(colour):
    return sum(w * int(colour[at : at + 2], 16) for w, at in ((0.299, 1), (0.587, 3), (0.114, 5)))


def test_kinds_differ_in_lightness_and_parts_in_hue():
    parts = hues([planned(line, 2, 2, COST)[0] for line in (BOTH_ENDS, INLINE, TEXT)])
    assert parts == {"vision": "#e69f00", "llm": "#0072b2", "gen": "#009e73"}
    for hue in parts.values():
        levels = sorted(lightness(shade(hue, kind)) for kind in KINDS)
        assert min(b - a for a, b in itertools.pairwise(levels)) > 25


@pytest.mark.parametrize("name", ["x.pdf", "x", "x.jpg", "svg"])
def test_another_suffix(name):
    with pytest.raises(HyperParallelError, match=r"ends in .* a figure ends in .svg or .png"):
        render(entries([TEXT]), name)


def test_too_much_to_draw():
    with pytest.raises(HyperParallelError, match="4096 actions on 512 ranks are too many for a figure; at most"):
        render(entries([TEXT], 512, 4, "llm=1/1"), "x.svg")


def test_without_matplotlib(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **more):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HyperParallelError, match=r"pip install 'hyperparallel\[figure\]'"):
        render(entries([TEXT]), "x.svg")
