"""Scenarios: the times of the design's table, and shares that give the ratio asked for."""

import pytest

from hyperparallel.cost.device import find_yaml
from hyperparallel.errors import ConfigError
from hyperparallel.planner.scenario import (
    EVEN,
    FILL,
    FILL_SPLIT,
    LINES,
    WARMUP,
    Assumed,
    images,
    load_scenario,
    scan,
    step_times,
)


def test_step_times_are_those_of_the_design():
    ranks, mbs, x = 4, 8, 3.0
    share = 0.2
    encode = ranks * x * share / (1 - share)
    times = step_times(Assumed(ranks=ranks, micro_batches=mbs, encoder_share=share), (EVEN, WARMUP))
    # tb = 2 is below te = 3, so no rank waits for the encode between two backwards
    assert times[EVEN] == pytest.approx(mbs * (encode + x) + (ranks - 1) * (1.0 + max(0.0, 2.0 - encode)))
    assert times[WARMUP] == pytest.approx((mbs + ranks - 1) * x + mbs // ranks * encode)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_filling_is_never_slower(trained, spread):
    one = Assumed(ranks=2, micro_batches=6, encoder_share=0.4, trained=trained, spread=spread)
    times = step_times(one)
    assert list(times) == list(LINES)
    assert times[FILL_SPLIT] <= times[FILL] * (1 + 1e-9)
    assert times[FILL] < times[WARMUP] < times[EVEN]


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_images_have_mean_one(spread):
    found = images(16, spread)
    assert sum(found) / 16 == pytest.approx(1.0)
    assert max(found) / min(found) >= 1.0 + 4 * spread
    assert found == images(16, spread)


def test_the_share_that_is_found_gives_the_ratio():
    scenario = load_scenario("paper_8")
    small = scenario.scan.model_copy(update={"ranks": (8,), "micro_batches": (8,)})
    ranges = scan(scenario.model_copy(update={"scan": small}))
    assert len(ranges) == 4
    reached = [one for one in ranges if one.over_even is not None]
    assert reached and len(reached) < len(ranges)  # a long tail keeps warmup from it
    for one in reached:
        times = step_times(one.assumed.model_copy(update={"encoder_share": one.over_even}), (EVEN, WARMUP))
        assert times[EVEN] / times[WARMUP] == pytest.approx(scenario.ratio, rel=0.005)


@pytest.mark.parametrize("name", ["paper_8", "paper_512"])
def test_the_assumptions_of_the_files_give_about_the_published_ratio(name):
    scenario = load_scenario(name)
    times = step_times(scenario.assumed, (EVEN, WARMUP))
    assert times[EVEN] / times[WARMUP] == pytest.approx(scenario.ratio, rel=0.02)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("devices: 8", "devices: 9", "P = 8 does not divide 9"),
        ("encoder_share: 0.34", "encoder_share: 1.2", "assumed.encoder_share"),
        ("before_s: 11.01", "befor_s: 11.01", "befor_s"),
        ("micro_batches: [8, 16, 32]", "micro_batches: [0]", "micro_batches"),
    ],
)
def test_wrong_files_are_refused(tmp_path, old, new, words):
    text = find_yaml("paper_8", "scenarios", "scenario").read_text()
    assert old in text
    path = tmp_path / "own.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        load_scenario(path)
