"""Sums of gradients: a ring counted message by message, and who takes part in one."""

import pytest

from hyperparallel import ModelSpec, derive
from hyperparallel.cost.reduces import reduce_times, ring


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_ring_is_two_rounds_of_neighbours(workers):
    size, alpha, beta = 96.0, 0.5, 0.25
    rounds = 2 * (workers - 1)  # each passes one of n chunks on, first summing, then copying
    assert ring(workers, size, alpha, beta) == pytest.approx(sum(alpha + beta * size / workers for _ in range(rounds)))
    assert ring(workers, 0.0, alpha, beta) == 0.0


def test_a_replicated_region_is_summed_over_all_ranks_of_all_replicas():
    sizes = [10.0, 10.0, 1.0, 2.0, 3.0, 4.0]
    trained = ModelSpec.of({"vision": 2, "llm": 4})
    transposed = derive("transpose(vision) >> 1f1b(llm)", trained, 2, 2)
    assert reduce_times(transposed, sizes, 1, 0.0, 1.0) == [ring(2, 20.0, 0.0, 1.0)] * 2
    both = [ring(6, 20.0, 0.0, 1.0) + ring(3, slab, 0.0, 1.0) for slab in (3.0, 7.0)]
    assert reduce_times(transposed, sizes, 3, 0.0, 1.0) == pytest.approx(both)
    inline = derive("1f1b(vision+llm)", trained, 2, 2)
    assert reduce_times(inline, sizes, 1, 1.0, 1.0) == [0.0, 0.0]


def test_what_is_frozen_is_not_summed():
    frozen = ModelSpec.of({"vision": 2, "llm": 4}, frozen={"vision"})
    plan = derive("transpose(vision) >> 1f1b(llm)", frozen, 2, 2)
    assert reduce_times(plan, [10.0] * 6, 1, 1.0, 1.0) == [0.0, 0.0]
