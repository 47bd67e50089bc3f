"""The ranks' side of `bench --emulate`: slabs that sleep, and all default lines as real processes."""

import json
import time
from statistics import median

import pytest
from mindspore import Tensor

from hyperparallel.algebra import parse_action
from hyperparallel.algebra.program import Piece
from hyperparallel.cells.transport import Transport
from hyperparallel.cost import PartCost
from hyperparallel.planner import Settings
from hyperparallel.training.emulate import EmulatedSlab, emulate, sleep_until
from hyperparallel.training.emulated_lines import Setting, default_lines, job_of, plan_for

UNIT = 1e-3


def slab(seconds=0.0, elements=(3, 5), is_last=False):
    times = {parse_action(word): seconds for word in ("2F0", "2B0")}
    return EmulatedSlab(2, times, {0: elements}, is_last=is_last, backward=True)


def test_a_slab_takes_its_time_without_computing():
    own = slab(0.05)
    inputs = own.inputs(None, {}, 0)
    for run in (lambda: own.forward(inputs, train=True), lambda: own.backward(inputs, None)):
        start, busy = time.perf_counter(), time.process_time()
        run()
        assert 0.05 <= time.perf_counter() - start < 0.5
        assert time.process_time() - busy < 0.02


def test_a_slab_hands_on_as_much_as_its_stage_does():
    own = slab(elements=(3, 5))
    assert own.forward(own.inputs(None, {}, 0), train=True).shape == (3,)
    gradient, weights = own.backward(own.inputs(None, {}, 0), None)
    assert gradient.shape == (5,) and weights == ()


def test_the_last_slab_has_a_loss_of_weight_one():
    own = slab(is_last=True)
    packed = own.forward(own.inputs(None, {}, 0), train=True)
    assert packed.asnumpy().tolist() == [0, 1]
    assert isinstance(own.loss_gradient(packed), Tensor)


def test_a_piece_has_its_own_time_and_size():
    times = {parse_action("0F3.1"): 0.0}
    own = EmulatedSlab(0, times, {Piece(3, 1): (7, 1)}, is_last=False, backward=False)
    assert own.forward(own.inputs(None, {}, Piece(3, 1), 4), train=True).shape == (7,)


def test_a_deadline_that_has_passed_is_not_waited_for():
    start = time.perf_counter()
    sleep_until(start - 1.0)
    assert time.perf_counter() - start < 0.01


def test_one_rank_runs_every_line_in_order_and_in_its_time():
    setting = Setting({"vision": PartCost(10, 0), "llm": PartCost(20, 40)}, 1, 2, UNIT, 4096)
    lines = [plan_for(text, setting) for text in default_lines(setting.parts, 1)]
    said = []
    result = emulate(json.loads(json.dumps(job_of(lines, steps=2))), Transport(), said.append)
    assert (result["alpha"], result["beta"]) == (0.0, 0.0) and said[-1] == "measuring steps, round 2 of 2"
    for line, row in zip(lines, result["rows"], strict=True):
        assert row["in_order"] and len(row["measured"]) == 2
        assert line.predicted(0.0, 0.0) == pytest.approx(0.14)
        assert all(0.14 <= walk <= step < 0.3 for walk, step in zip(row["walk"], row["measured"], strict=True))


@pytest.mark.slow
def test_four_processes_take_hardly_longer_than_predicted(tmp_path):
    from hyperparallel.commands.emulate import measure

    each = tuple(PartCost(time, 2 * time) for time in (0, 20, 100, 20, 0, 40))
    vision = PartCost(30, 60, each=each)
    setting = Setting({"vision": vision, "llm": PartCost(20, 40)}, 4, len(each), UNIT, 4096, Settings(engine="list"))
    lines = [plan_for(text, setting) for text in default_lines(setting.parts, 4)]
    result = measure(lines, 3, str(tmp_path), lambda doing: None)
    assert 0 < result["alpha"] < 0.01
    ratios = {}
    for line, row in zip(lines, result["rows"], strict=True):
        assert row["in_order"], line.plan.schedule
        predicted = line.predicted(result["alpha"], result["beta"])
        ratios[str(line.plan.schedule)] = min(row["measured"]) / predicted
    # The fastest of three steps, and more room than on a quiet machine: tests share theirs with anything.
    assert min(ratios.values()) >= 0.99 and median(ratios.values()) <= 1.15 and max(ratios.values()) <= 1.3, ratios
