"""What differs from step to step is decided alike by everybody, and pays."""

import time
from types import SimpleNamespace

import pytest
from training_config import LINES, write_config

from hyperparallel.cost import simulate
from hyperparallel.training.build import build_feed, build_layers, estimate_costs
from hyperparallel.training.config import load_config
from hyperparallel.training.costs import estimate_costs as costs_of_infos
from hyperparallel.training.planning import plan_job
from hyperparallel.training.runners import check_runner
from hyperparallel.training.steps import Steps

FILL = "schedule='transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)'"
UNEVEN = [
    "data.max_images=6",
    "data.mix=long_tail",
    "model.llm.max_length=48",
    "model.vision.depth=4",
    "cost.message_ms=0.002",
]


def steps_of(tmp_path, *overrides):
    path = write_config(tmp_path, LINES.replace("batch_size: 8", "batch_size: 32").replace("batches: 2", "batches: 8"))
    config = load_config(path, [FILL, *UNEVEN, "planner.engine=list", *overrides])
    layers = build_layers(config)
    plan = plan_job(config, layers).plan
    return Steps(config, plan, layers, build_feed(config, "train")), config, plan, layers


def test_an_order_is_a_permutation_that_all_ranks_find_and_that_gains(tmp_path):
    steps, config, plan, layers = steps_of(tmp_path, "planner.reorder=true")
    again = steps_of(tmp_path, "planner.reorder=true")[0]
    for step in range(4):
        order = steps.order(step)
        assert sorted(order) == list(range(8)) and order == again.order(step)
        assert steps.gains[step] >= 0
        infos = build_feed(config, "train").describe(step)
        assert steps.feed.describe(step) == [infos[mb] for mb in order]
        times = [
            simulate(plan, costs_of_infos(config, plan, layers, sizes)).step_time
            for sizes in (infos, steps.feed.describe(step))
        ]
        assert times[1] == pytest.approx(times[0] * (1 - steps.gains[step]))
    assert max(steps.gains.values()) > 0.01


def test_a_plan_of_a_step_is_the_same_on_every_rank_and_no_slower(tmp_path):
    steps, config, plan, layers = steps_of(tmp_path, "planner.replan=step")
    again = steps_of(tmp_path, "planner.replan=step")[0]
    gains = []
    for step in range(4):
        own = steps.plan(step)
        assert own.programs == again.plan(step).programs
        costs = costs_of_infos(config, plan, layers, build_feed(config, "train").describe(step))
        gains.append(simulate(plan, costs).step_time / simulate(own, costs).step_time - 1)
    assert max(gains) > 0.01 and min(gains) >= 0


def test_planning_a_step_takes_about_ten_milliseconds(tmp_path):
    """In units of a loop that takes 9 to 12 ms, so that a slow or busy machine counts little."""
    overrides = ["parallel.ranks=4", "training.micro_batches=16", "training.batch_size=64", "model.llm.depth=6"]
    steps = steps_of(tmp_path, "planner.replan=step", *overrides)[0]
    costs = [steps._costs(steps.feed, step) for step in range(6)]
    from hyperparallel.planner.step import replan

    def loop():
        sums = {}
        for number in range(100_000):
            sums[number & 1023] = sums.get(number & 1023, 0) + number

    def spent(work, *arguments):
        start = time.thread_time()
        work(*arguments)
        return time.thread_time() - start

    unit = min(spent(loop) for _ in range(5))
    assert sorted(min(spent(replan, steps._plan, one) for _ in range(5)) for one in costs)[1] < 1.25 * unit


def test_the_thread_that_plans_ahead_notes_its_loads_too(tmp_path):
    steps, _, plan, _ = steps_of(tmp_path, "planner.reorder=true")
    runner = SimpleNamespace(requests={0: ((0, 2), ("input_ids",))})
    waits = []
    for step in steps.stream(runner, 3, 6):
        waits.append(steps.feed.loads.waited)
        assert [mb for mb, columns in enumerate(step.batch) if columns] == [0, 2]
        time.sleep(0.05)
    assert [load.step for load in steps.feed.loads.made()] == [3, 4, 5] and steps.feed.loads.wait_of(5)
    assert waits[0] > 0.0 and min(waits[1:]) < 0.02


@pytest.mark.parametrize(
    "overrides, said",
    [
        (["planner.replan=step", "run.mode=graph", "run.wires=pair_sum"], "needs run.mode: stepwise"),
        (["planner.replan=step", "schedule='transpose(vision) >> 1f1b(llm)'"], "write place=fill"),
    ],
)
def test_what_cannot_be_planned_again_is_refused(tmp_path, overrides, said):
    _, config, plan, _ = steps_of(tmp_path, *overrides)
    with pytest.raises(ValueError, match=said):
        check_runner(config, plan)


def test_the_plan_is_made_for_the_mean_micro_batch(tmp_path):
    _, config, plan, layers = steps_of(tmp_path)
    certificate = plan_job(config, layers).certificate
    assert certificate.bound <= certificate.step_time
    assert estimate_costs(config, plan, layers).compute[0, "F"] != [certificate.step_time]
