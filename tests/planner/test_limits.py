"""A limit in bytes: read from text, kept by the loosest limit on encodes that keeps it, refused with the smallest."""

import re
from types import SimpleNamespace

import pytest

from hyperparallel.errors import ScheduleError
from hyperparallel.planner import LimitError
from hyperparallel.planner.limits import MemoryLimit, parse_limit, plan_within


@pytest.mark.parametrize(
    ("text", "encodes", "size"),
    [
        ("6 encodes", 6, None),
        ("1encode", 1, None),
        ("8 GiB", None, 8 * 2**30),
        (" 1.5 MB ", None, 1_500_000),
        ("512KiB", None, 512 * 1024),
        ("25123456 B", None, 25_123_456),
    ],
)
def test_limits_are_read(text, encodes, size):
    assert parse_limit(text) == MemoryLimit(encodes, size)


@pytest.mark.parametrize("text", ["", "8", "8 gib", "0 encodes", "1.5 encodes", "-1 GiB", "0 B", "8 GiB 2", "GiB"])
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(ScheduleError, match="expected a number of live encodes such as '6 encodes', or of bytes"):
        parse_limit(text)


class Fakes:
    """Plans whose ranks hold `still` and one byte for each encode that they may hold, up to `free`."""

    def __init__(self, free: int, feasible: int = 1, still: int = 100) -> None:
        self.free, self.feasible, self.still = free, feasible, still
        self.asked: list[int | None] = []

    def plan_at(self, limit: int | None) -> SimpleNamespace:
        self.asked.append(limit)
        if limit is not None and limit < self.feasible:
            raise LimitError(f"live_limit {limit}: raise the limit to {self.feasible}")
        return SimpleNamespace(plan=self.free if limit is None else min(limit, self.free))

    def peaks_of(self, held: int) -> list[int]:
        return [self.still, self.still + held, self.still // 2]

    def within(self, limit: int, most: int):
        return plan_within(limit, most, self.plan_at, self.peaks_of)


def test_a_limit_that_stops_nothing_asks_for_one_plan():
    fakes = Fakes(free=40)
    assert fakes.within(140, 64).plan == 40 and fakes.asked == [None]


@pytest.mark.parametrize("limit", [101, 102, 117, 138, 139])
@pytest.mark.parametrize("most", [40, 64])
def test_the_loosest_limit_on_encodes_is_found(limit, most):
    fakes = Fakes(free=40)
    assert fakes.within(limit, most).plan == limit - 100
    assert len(fakes.asked) <= 1 + most.bit_length()


@pytest.mark.parametrize("feasible", [1, 5, 39])
def test_what_is_infeasible_names_the_smallest(feasible):
    fakes = Fakes(free=40, feasible=feasible)
    with pytest.raises(ScheduleError, match=r"within 100 bytes; the smallest .* found for is [\d,]+ bytes") as error:
        fakes.within(100, 64)
    smallest = int(re.search(r"found for is ([\d,]+)", str(error.value))[1].replace(",", ""))
    assert smallest == 100 + feasible
    assert fakes.within(smallest, 64).plan == feasible
    with pytest.raises(ScheduleError, match=f"{smallest:,}"):
        fakes.within(smallest - 1, 64)


def test_where_nothing_is_left_to_plan_one_plan_is_made():
    fakes = Fakes(free=40)
    with pytest.raises(ScheduleError, match="the smallest that a plan was found for is 140 bytes"):
        fakes.within(139, 0)
    assert fakes.asked == [None]
