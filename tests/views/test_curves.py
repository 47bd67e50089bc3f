"""The curves of a run: what is read, what is left out, and that the figure shows the numbers."""

import json
import math

import numpy as np
import pytest

from hyperparallel.errors import HyperParallelError
from hyperparallel.views.curves import (
    draw_curves,
    not_finite,
    read_metrics,
    render_curves,
    smoothed,
    usual_step_time,
    values_of,
)

TITLE = "runs/digits/2026"


def run_of(count=40, **more):
    """Make the metrics of a run: the first step compiles, the loss falls."""
    return [
        {"step": step, "loss": 3 * 0.99**step, "step_time": 8.0 if step == 0 else 0.4, **more} for step in range(count)
    ]


def written(path, lines, end="\n"):
    path.write_text("\n".join(json.dumps(line) for line in lines) + end)
    return path


def drawn(lines):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = draw_curves(Figure, lines, TITLE)
    FigureCanvasAgg(drawing).draw()
    return drawing


def curve(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line.get_xdata(), line.get_ydata()


def test_of_a_step_that_was_run_again_the_last_line_counts(tmp_path):
    again = [{"step": 3, "loss": 9.0}, {"step": 4, "loss": 8.0}]
    lines, notices = read_metrics(written(tmp_path / "m", [*run_of(5), *again]))
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4] and notices == []
    assert values_of(lines, "loss")[1][3:] == [9.0, 8.0] and values_of(lines, "step_time")[0] == [0, 1, 2]


@pytest.mark.parametrize("rest", ['{"step": 5, "lo', "{", '{"step": 5}'])
def test_a_line_without_its_end_is_left_out_and_said(tmp_path, rest):
    path = written(tmp_path / "m", run_of(5), "\n" + rest)
    lines, notices = read_metrics(path)
    assert lines == run_of(5) and notices == [f"{path}, line 6 is only half written and left out"]


@pytest.mark.parametrize("row", ["{", "[1]", '{"loss": 1}', '{"step": "1"}', '{"step": true}', "[" * 100_000])
def test_another_line_that_is_none_is_named(tmp_path, row):
    (tmp_path / "m").write_text('{"step": 0, "loss": 1}\n\n' + row + '\n{"step": 1}\n')
    with pytest.raises(HyperParallelError, match="m, line 3 is .*; expected a JSON object with a whole number 'step'"):
        read_metrics(tmp_path / "m")


@pytest.mark.parametrize("content", ["", "\n", '{"step": 0'])
def test_a_run_without_a_step(tmp_path, content):
    (tmp_path / "m").write_text(content)
    with pytest.raises(HyperParallelError, match="m has no step yet; wait for the first"):
        read_metrics(tmp_path / "m")
    with pytest.raises(HyperParallelError, match="gone cannot be read .No such file"):
        read_metrics(tmp_path / "gone")


def test_smoothing_keeps_what_is_constant_and_forgets_by_half():
    assert smoothed([3.0] * 50, 4.0) == pytest.approx([3.0] * 50)
    step = smoothed([0.0] * 400 + [1.0] * 8, 4.0)
    assert step[399] == 0.0 and step[403] == pytest.approx(0.5) and step[407] == pytest.approx(0.75)


def test_the_median_is_that_of_the_summary():
    from hyperparallel.training.metrics import summarise

    more = dict.fromkeys(("tokens_per_s", "images_per_s", "data_wait", "memory_peak_mb", "skipped"), 1.0)
    lines = run_of(21, bubble=[0.0], updated=True, **more)
    lines = [{**line, "step_time": 1 / (1 + line["step"])} for line in lines]
    assert usual_step_time(lines) == pytest.approx(summarise(lines)["step_time"])
    assert usual_step_time([{"step": 0}]) is None


def test_the_curves_are_the_numbers():
    lines = run_of(40)
    loss, time = drawn(lines).axes
    steps, losses = curve(loss, "loss")
    assert list(steps) == list(range(40)) and np.allclose(losses, [3 * 0.99**step for step in range(40)])
    assert np.allclose(curve(loss, "smoothed")[1], smoothed(losses, 1.0)) and loss.get_yscale() == "linear"
    assert curve(time, "step")[1][0] == 8.0 and time.get_yscale() == "log"  # the first step compiles
    assert set(curve(time, "median 400 ms")[1]) == {0.4}
    assert loss.get_xlim() == time.get_xlim()
    assert [text.get_text() for text in time.get_legend().get_texts()] == ["step", "median 400 ms"]


def test_a_loss_that_falls_by_powers_and_steps_that_are_alike():
    lines = [{"step": step, "loss": 10.0 ** -(step / 10), "step_time": 2.0} for step in range(40)]
    loss, time = drawn(lines).axes
    assert loss.get_yscale() == "log" and time.get_yscale() == "linear" and time.get_ylim()[0] == 0
    expected = 10 ** np.array(smoothed([-step / 10 for step in range(40)], 1.0))
    assert np.allclose(curve(loss, "smoothed")[1], expected)
    assert set(curve(time, "median 2.00 s")[1]) == {2.0}
    ticks = [text.get_text() for text in loss.get_yticklabels()]
    assert {"0.001", "0.1", "1"} <= set(ticks)


def test_losses_that_are_no_numbers_are_marked():
    lines = run_of(12)
    lines[4]["loss"], lines[7]["loss"], lines[9]["loss"] = math.nan, math.inf, None
    lines = json.loads(json.dumps(lines))
    del lines[10]["loss"]
    assert not_finite(lines) == [4, 7, 9]
    loss = drawn(lines).axes[0]
    marks = [
        line.get_xdata()[0] for line in loss.lines if line.get_label() == "not finite" or len(line.get_xdata()) == 2
    ]
    assert marks == [4, 7, 9] and list(curve(loss, "loss")[0]) == [0, 1, 2, 3, 5, 6, 8, 11]


def test_bubbles_and_waits_where_they_were_measured():
    lines = run_of(30, bubble=[0.1, 0.4], data_wait=0.001)
    lines[3] |= {"data_wait": 0.2}
    lines[5] |= {"bubble": None}
    loss, time, bubble = drawn(lines).axes
    assert [list(one) for one in curve(time, "wait for data")] == [[3], [0.2]]
    assert np.allclose(curve(bubble, "rank 1")[1], 40) and len(curve(bubble, "rank 0")[0]) == 29
    assert bubble.get_ylim() == (0, 100)
    assert len(drawn(run_of(30, bubble=[])).axes) == 2


def test_many_ranks_and_steps_without_some_fields():
    lines = run_of(4, bubble=[0.2] * 64)
    lines += [{"step": 4}, {"step": 5, "loss": 1.0}, {"step": 6, "step_time": 1.0}, {"step": 7, "bubble": [0.1]}]
    bubble = drawn(lines).axes[2]
    assert len(bubble.lines) == 64 and len(bubble.get_legend().get_texts()) == 8
    assert len(drawn([{"step": 0, "loss": 1.0}]).axes) == 2
    assert len(drawn([{"step": 3, "step_time": 0.0}]).axes) == 2
    with pytest.raises(HyperParallelError, match="no line of the metrics has a finite 'loss' or 'step_time'"):
        render_curves([{"step": 0, "loss": math.nan}], "x.png", TITLE)


def test_nothing_leaves_the_page():
    drawing = drawn([{**line, "loss": 1e-5 * line["loss"]} for line in run_of(3, bubble=[0.1] * 8, data_wait=0.3)])
    page = drawing.bbox
    texts = [*drawing.texts, *(text for axes in drawing.axes for text in axes.get_legend().get_texts())]
    texts += [axes.yaxis.label for axes in drawing.axes]
    boxes = [text.get_window_extent() for text in texts]
    assert not [box for box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > page.x1 or box.y1 > page.y1]


@pytest.mark.parametrize(("suffix", "head"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_same_bytes_each_time(suffix, head):
    content = render_curves(run_of(), f"x{suffix}", TITLE)
    assert content.startswith(head) and content == render_curves(run_of(), f"y{suffix}", TITLE)
