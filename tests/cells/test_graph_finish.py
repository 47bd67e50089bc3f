"""The end of a step: sums over copies in an order that all ranks share, norm, update."""

from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.cells import graph_finish
from hyperparallel.cells.graph_finish import Summand, buckets, write_finish

ENCODER = Summand(((0, 0),), (4, 2), (0, 1), True)
OWN = Summand(((2, 0),), (3,), (0,), True)
TIED = Summand(((2, 1), (4, 0)), (5,), (0, 3), False)


def test_copies_on_one_rank_are_added_and_both_updated():
    finish = write_finish([ENCODER, OWN, TIED], [0, 2, 4], "ct", "packed", workers=4, clip=True)
    assert "g2 = acc2[1] + acc4[0]" in finish.lines
    updates = [line for line in finish.lines if "update.one" in line]
    assert [line.split("depend(")[1].split(",")[0] for line in updates] == ["g0", "g1", "g2", "g2"]
    assert all("done) * factor" in line for line in updates)
    assert finish.groups == [(0, 1), (0, 3)]
    assert "square = self.square(g0) + self.square(g1)" in finish.lines  # the tied one is counted elsewhere


def test_a_rank_that_ran_no_micro_batch_adds_zeros():
    finish = write_finish([ENCODER], [], "ct", "packed", workers=2, clip=False)
    assert "g0 = self.zeros_0" in finish.lines and finish.zeros == [(4, 2)]


def test_every_collective_waits_for_the_one_before_it():
    finish = write_finish([ENCODER, OWN, TIED], [0, 2, 4], "(ct, mt)", "packed", workers=4, clip=True)
    sums = [line for line in finish.lines if "sum" in line and "self.depend(" in line]
    tokens = [line.rsplit(", ", 1)[1].rstrip(")") for line in sums]
    assert sums[0].endswith("(ct, mt)))") and tokens[1:] == ["packed", "flat", "flat"]


def test_alone_there_is_no_collective():
    finish = write_finish([OWN], [2], "ct", "packed", workers=1, clip=True)
    assert not any("sum" in line for line in finish.lines)


@given(sizes=st.lists(st.integers(1, 40), max_size=12), groups=st.lists(st.sampled_from([(0, 1), (0, 3), (0,)])))
def test_buckets_hold_each_shared_parameter_once_and_are_not_too_large(sizes, groups):
    shared = [Summand(((0, i),), (n,), group, True) for i, (n, group) in enumerate(zip(sizes, groups, strict=False))]
    before, graph_finish.BUCKET = graph_finish.BUCKET, 50
    try:
        found = buckets(shared)
    finally:
        graph_finish.BUCKET = before
    assert sorted(i for bucket in found for i in bucket) == [i for i, s in enumerate(shared) if len(s.workers) > 1]
    for bucket in found:
        assert len({shared[i].workers for i in bucket}) == 1
        assert len(bucket) == 1 or sum(shared[i].shape[0] for i in bucket) <= 50
    assert [shared[b[0]].workers for b in found] == sorted(shared[b[0]].workers for b in found)


def test_scaled_gradients_are_divided_before_they_are_squared_and_every_worker_knows_whether_they_are_finite():
    finish = write_finish(
        [ENCODER, TIED], [0, 2, 4], "ct", "packed", workers=4, clip=True, scaled=True, one_by_one=False
    )
    lines = finish.lines
    assert "factor = self.inverse(packed[1] * scale)" in lines
    assert "square = self.square(g0 * factor)" in lines
    order = [
        next(i for i, line in enumerate(lines) if text in line) for text in ("all_sum(self.depend(square", "finite =")
    ]
    assert order == sorted(order), "the flag comes from the sum over all workers"
    assert (
        "packed = self.depend(packed, self.update(finite, packed[1], (g0 * factor, g1 * factor, g1 * factor,)))"
        in lines
    )
    assert lines[-1] == "return packed, norm, finite"


def test_without_a_limit_scaled_gradients_are_checked_all_the_same():
    lines = write_finish([OWN], [2], "ct", "packed", workers=1, clip=False, scaled=True).lines
    assert "finite = self.is_finite(square)" in lines
    assert not any("limit" in line for line in lines)
