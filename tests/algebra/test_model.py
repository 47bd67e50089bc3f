import time
from itertools import combinations, pairwise

import pytest
from algebra_cases import quick
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import LayerSpec, ModelSpec
from hyperparallel.algebra.model import cut_balanced, cut_by_counts, cut_evenly
from hyperparallel.errors import ModelError


def tiles(cut, span):
    return cut[0][0] == span[0] and cut[-1][1] == span[1] and all(a[1] == b[0] for a, b in pairwise(cut))


@pytest.mark.parametrize(
    "layers, pieces, counts",
    [(30, 4, [8, 8, 7, 7]), (4, 4, [1, 1, 1, 1]), (5, 1, [5]), (7, 3, [3, 2, 2]), (32, 4, [8, 8, 8, 8])],
)
def test_an_even_cut_puts_the_larger_pieces_first(layers, pieces, counts):
    assert [last - first for first, last in cut_evenly((3, 3 + layers), pieces)] == counts


@quick
@given(st.integers(0, 9), st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_every_cut_tiles_its_span(first, costs, data):
    span, pieces = (first, first + len(costs)), data.draw(st.integers(1, len(costs)))
    even, balanced = cut_evenly(span, pieces), cut_balanced(span, pieces, [0] * first + costs)
    for cut in (even, balanced):
        assert len(cut) == pieces
        assert tiles(cut, span)
        assert all(a < b for a, b in cut)
    assert cut_by_counts(first, [b - a for a, b in balanced]) == balanced
    sizes = [b - a for a, b in even]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(st.integers(0, 3), st.lists(st.integers(0, 20), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_smaller_largest_piece_than_the_balanced_one(first, costs, data):
    pieces = data.draw(st.integers(1, len(costs)))
    cut = cut_balanced((first, first + len(costs)), pieces, [99] * first + costs)
    best = min(
        max(sum(costs[a:b]) for a, b in pairwise((0, *inner, len(costs))))
        for inner in combinations(range(1, len(costs)), pieces - 1)
    )
    assert max(sum(costs[a - first : b - first]) for a, b in cut) == best


@pytest.mark.parametrize("costs, first", [([1, 1, 1], 1), ([0, 0, 1, 0], 1), ([3, 1, 1], 1), ([1, 1, 3], 2)])
def test_among_equal_balanced_cuts_the_earlier_piece_is_the_shorter(costs, first):
    assert cut_balanced((0, len(costs)), 2, costs) == [(0, first), (first, len(costs))]


def test_a_balanced_cut_of_a_long_model_does_not_take_long():
    start = time.process_time()
    cut = cut_balanced((0, 1536), 32, [1.0, 3.0] * 768)
    assert time.process_time() - start < 3
    assert max(2 * (b - a) for a, b in cut) <= 98


def test_parts_and_their_spans_follow_the_sequence():
    model = ModelSpec.of({"vision": 2, "bridge": 1, "llm": 4}, frozen={"vision"})
    assert model.parts == ("vision", "bridge", "llm")
    assert [model.span(part) for part in model.parts] == [(0, 2), (2, 3), (3, 7)]
    assert [layer.trainable for layer in model.layers] == [False] * 2 + [True] * 5


@pytest.mark.parametrize("parts", [[], ["a", "b", "a"]], ids=["no layer", "a part in two runs"])
def test_a_model_without_layers_or_with_a_torn_part_is_refused(parts):
    with pytest.raises(ModelError, match="each part in one run"):
        ModelSpec(tuple(map(LayerSpec, parts)))
