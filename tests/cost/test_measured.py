import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.cost.measured import (
    Fit,
    MeasuredCosts,
    MeasuredLayer,
    check_measured,
    fit,
    read_measured,
    write_measured,
)
from hyperparallel.errors import ConfigError

SIZES = [(1, 8), (9, 64), (9, 8), (1, 64), (5, 32)]
COSTS = MeasuredCosts(
    device="CPU",
    conditions={"run.jit": True},
    sizes=[{"images": 1, "samples": 1, "tokens": 8}],
    alpha=1e-3,
    beta=1e-9,
    call={"F": 0.5, "B": 0.25},
    layers=[
        MeasuredLayer(name="a", trainable=False, work=10.0, forward=Fit(base=1, image=2), backward=None),
        MeasuredLayer(name="b", trainable=True, work=20.0, forward=Fit(base=1, token=1), backward=Fit(base=4)),
        MeasuredLayer(name="c", trainable=False, work=30.0, forward=Fit(base=1), backward=Fit(base=2, token=2)),
    ],
    stages=[],
)
LAYERS = [("a", False, 10.0), ("b", True, 20.0), ("c", False, 30.0)]


@given(st.tuples(*[st.floats(1e-4, 1.0)] * 3), st.sets(st.integers(0, 2), max_size=2))
def test_what_is_linear_is_found(coefficients, zeros):
    base, image, token = (0.0 if index in zeros else value for index, value in enumerate(coefficients))
    found = fit([(images, tokens, base + image * images + token * tokens) for images, tokens in SIZES])
    assert (found.base, found.image, found.token) == pytest.approx((base, image, token), rel=1e-5, abs=1e-7)
    assert found.error < 1e-5


@given(st.lists(st.floats(1e-3, 1.0), min_size=5, max_size=5))
def test_coefficients_are_never_negative_and_the_error_is_stated(seconds):
    rows = [(*size, time) for size, time in zip(SIZES, seconds, strict=True)]
    found = fit(rows)
    assert min(found.base, found.image, found.token) >= 0
    errors = [abs(found.at({"images": images, "tokens": tokens}) / time - 1) for images, tokens, time in rows]
    assert found.error == pytest.approx(max(errors), rel=1e-6, abs=1e-9)


def test_what_a_layer_does_not_read_is_left_out():
    rows = [(1, 8, 1.0), (9, 64, 9.0), (9, 8, 8.9), (1, 64, 1.1)]
    assert fit(rows, tokens=False).token == 0 < fit(rows, tokens=False).image
    assert fit(rows, images=False).image == 0 < fit(rows, images=False).token
    assert fit(rows).image > 0 and fit(rows).token > 0


def test_falling_times_are_fitted_by_a_constant():
    found = fit([(1, 8, 3.0), (2, 8, 2.0), (3, 8, 1.0)])
    assert found.image == 0 and found.base + 8 * found.token > 0


@pytest.mark.parametrize("rows", [[(1, 8, 2.0)], [(1, 8, 2.0), (1, 8, 2.0)], [(1, 8, 2.0), (2, 16, 4.0)]])
def test_few_sizes_still_give_a_fit(rows):
    found = fit(rows)
    assert [found.at({"images": images, "tokens": tokens}) for images, tokens, _ in rows] == pytest.approx(
        [time for _, _, time in rows]
    )


def test_a_backward_is_split_in_halves_and_passes_only_the_gradient_where_frozen():
    times = COSTS.times({"images": 3, "tokens": 5})
    assert [tuple(time) for time in times] == [(7, 0, 0), (6, 2, 2), (1, 12, 0)]


def test_a_file_comes_back_as_it_was_written(tmp_path):
    for _ in range(2):
        write_measured(tmp_path / "costs.json", COSTS)
    assert read_measured(tmp_path / "costs.json") == COSTS
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written .*give --out another place"):
        write_measured(tmp_path / "no" / "costs.json", COSTS)


def changed(**values):
    return json.dumps({**COSTS.model_dump(mode="json"), **values})


LAYER = COSTS.layers[1].model_dump(mode="json")
FILES = {
    "not JSON": ("{", "is not JSON"),
    "a list": ("[]", "version None; this program reads"),
    "other version": (changed(version=2), "version 2; this program reads files of hyperparallel profile, version 1"),
    "no version": (json.dumps({"device": "CPU"}), "version None"),
    "unknown key": (changed(more=1), "unknown key 'more'"),
    "negative": (changed(alpha=-1), "alpha = -1: input should be greater than or equal to 0"),
    "not finite": (changed(alpha=float("inf")), "holds Infinity, which is not a finite number"),
    "too large": (changed(alpha=1e300), "alpha = 1e+300: input should be less than or equal to 1e+12"),
    "a text for a number": (changed(alpha="1"), "alpha = '1': input should be a valid number"),
    "a key twice": (changed()[:-1] + ', "alpha": 0}', "has the key 'alpha' twice"),
    "no sizes": (changed(sizes=[]), "sizes = []: list should have at least 1 item"),
    "half a size": (changed(sizes=[{"images": 1}]), "sizes has no samples, tokens"),
    "no call of B": (changed(call={"F": 0.5}), "call has no B"),
    "a stage of no layers": (
        changed(stages=[{"layers": [2, 9], "kind": "F", "error": 0, "held_out": 0}]),
        "a stage has the layers (2, 9), of 3",
    ),
    "a layer twice": (changed(layers=[LAYER, LAYER]), "layer 'b' is there twice"),
    "trained without backward": (changed(layers=[{**LAYER, "backward": None}]), "layer 'b' has no backward, which it"),
    "frozen with backward": (
        changed(layers=[{**LAYER, "trainable": False}]),
        "layer 'b' has a backward, which no layer up to it needs",
    ),
    "nested": ("[" * 10_000, "is not JSON that can be read (nested more than 100 deep)"),
    "a layer without time": (changed(layers=[{"name": "a"}]), "'layers.0.trainable' is missing"),
}


@pytest.mark.parametrize(("text", "words"), FILES.values(), ids=FILES)
def test_files_that_are_refused(tmp_path, text, words):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_measured(path)
    assert str(error.value).startswith(str(path)) and words in str(error.value)


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(ConfigError, match="make it with hyperparallel profile CONFIG.yaml --out"):
        read_measured(tmp_path / "costs.json")


OTHERS = {
    "fewer layers": (LAYERS[:2], {}, "has the times of 3 layers (a .. c), the model has 2"),
    "another name": ([*LAYERS[:2], ("d", False, 30.0)], {}, "layer 2 is named 'c', here 'd'"),
    "frozen": ([LAYERS[0], ("b", False, 20.0), LAYERS[2]], {}, "layer 1 is trainable True, here False"),
    "wider": ([("a", False, 40.0), *LAYERS[1:]], {}, "layer 0 is work in FLOPs 10.0, here 40.0"),
    "conditions": (LAYERS, {"run.jit": False}, "was measured with run.jit = True, here False"),
    "new condition": (LAYERS, {"run.dtype": "float16"}, "was measured with run.dtype = None, here 'float16'"),
}


@pytest.mark.parametrize(("layers", "conditions", "words"), OTHERS.values(), ids=OTHERS)
def test_the_file_of_another_model_is_refused(layers, conditions, words):
    with pytest.raises(ConfigError) as error:
        check_measured("costs.json", COSTS, layers, conditions)
    assert words in str(error.value) and "measure this configuration" in str(error.value)


def test_the_file_of_this_model_passes():
    check_measured("costs.json", COSTS, LAYERS, {"run.jit": True})
