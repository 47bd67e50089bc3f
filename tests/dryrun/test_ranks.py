import pytest
from dryrun_text import all_reduce, chain, receive, send

from hyperparallel.dryrun import check_ranks


def s(tag, to, **options):
    return lambda reads: send(tag, to, reads, **options)


def r(tag, source, **options):
    return lambda reads: receive(tag, source, reads, **options)


def a(**options):
    return lambda reads: all_reduce(reads, **options)


@pytest.mark.parametrize(
    "ranks",
    [
        [[s(0, 1), r(1, 1)], [r(0, 0), s(1, 0)]],
        [[s(0, 1)], [r(0, 0), s(1, 2)], [r(1, 1)]],
        [[a(), s(0, 1)], [a(), r(0, 0)]],
        [[a(ranks="(0, 1)", group="g")], [s(0, 2), a(ranks="(0, 1)", group="g")], [r(0, 1)]],
        [[], []],
    ],
)
def test_matching_ranks_agree(ranks):
    assert check_ranks([chain(*rank) for rank in ranks]) == []


@pytest.mark.parametrize(
    ("ranks", "stuck"),
    [
        ([[s(0, 1), r(1, 1)], [s(1, 0), r(0, 0)]], [0, 1]),
        ([[s(0, 1)], []], [0]),
        ([[a(), s(0, 1)], [r(0, 0), a()]], [0, 1]),
        ([[s(0, 1), r(5, 2)], [r(0, 0), s(1, 2)], [s(5, 0), r(1, 1)]], []),
        ([[r(5, 2), s(0, 1)], [r(0, 0), s(1, 2)], [r(1, 1), s(5, 0)]], [0, 1, 2]),
        ([[a(group="g")], [a(group="h")]], [0, 1]),
        ([[s(0, 7)], []], [0]),
        ([[a(ranks="(0, 5)")]], [0]),
    ],
)
def test_stuck_ranks_are_named(ranks, stuck):
    problems = check_ranks([chain(*rank) for rank in ranks])
    assert [problem.split(" is stuck")[0] for problem in problems] == [f"rank {rank}" for rank in stuck]


@pytest.mark.parametrize(
    ("sent", "received", "what"),
    [
        (s(0, 1), r(1, 0), "tags"),
        (s(0, 1), r(0, 0, shape="(8, 4)"), "shapes"),
        (s(0, 1), r(0, 0, dtype="Float16"), "types"),
        (s(0, 1), r(0, 0, group="other"), "groups"),
    ],
)
def test_ends_that_differ_are_reported(sent, received, what):
    (problem,) = check_ranks([chain(sent), chain(received)])
    assert problem.startswith(f"{what} differ: ")
