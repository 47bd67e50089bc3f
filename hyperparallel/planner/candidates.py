"""What a search tries: layouts of the devices, and for each of them schedule lines. No costs here.

A line comes from a *base*: a backbone with its slabs, and the parts that are transposed before it, if any. All lines of
a base share their slabs, and so a lower bound.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hyperparallel.errors import ScheduleError

SKELETONS = ("1f1b", "interleaved", "zb", "wave", "gpipe")
"""What a search can try: `interleaved` is `1f1b(...)*v`, `zb` also folded."""

DEFAULT = SKELETONS[:-1]
"""`gpipe` takes the time of `1f1b` and holds M micro-batches instead of P, so it is tried only when named."""

_CHUNKS = (2, 4)
"""Values of v."""

FINEST = "split=4"
"""The option with the smallest pieces that are tried."""

FILL = "owner=balanced, place=fill"
"""The options that leave all to the planner."""

_SPLITS = ("", "split=2", FINEST)


class Layout(NamedTuple):
    """How devices and batch are cut; the job has P x D x T workers.

    Args:
        ranks: P.
        replicas: D.
        tensor: T.
        micro_batches: M, of a replica.
    """

    ranks: int
    replicas: int
    tensor: int
    micro_batches: int

    @property
    def text(self) -> str:
        """Name P, D and M; and T, unless it is 1."""
        tensor = f", T = {self.tensor}" * (self.tensor > 1)
        return f"P = {self.ranks}, D = {self.replicas}{tensor}, M = {self.micro_batches}"


class Base(NamedTuple):
    """A backbone and what is transposed before it.

    Args:
        transposed: parts of the first region, joined by `+`; empty: the encoder is inline.
        skeleton: such as `zb`.
        parts: of the backbone, joined by `+`.
        options: of the backbone, such as `slabs=balanced`.
        count: v of `*v`.
    """

    transposed: str
    skeleton: str
    parts: str
    options: tuple[str, ...] = ()
    count: int = 1

    def line(self, encoding: str = "") -> str:
        """Write the schedule line, with options of `transpose`."""
        backbone = f"{self.skeleton}({', '.join((self.parts, *self.options))}){f'*{self.count}' * (self.count > 1)}"
        if not self.transposed:
            return backbone
        return f"transpose({', '.join(filter(None, (self.transposed, encoding)))}) >> {backbone}"

    @property
    def kind(self) -> tuple[str, ...]:
        """What two rows of a table must differ in: all but the slabs."""
        fold = tuple(option for option in self.options if option.startswith("fold"))
        return (self.transposed, self.skeleton, self.parts, *fold, str(self.count))


def layouts(workers: int, batch: int, tensor: int = 1, most_ranks: int | None = None) -> list[Layout]:
    """List every P x D of the workers, and every M that cuts the batch of a replica evenly.

    M is at least P, since fewer micro-batches than ranks leave ranks idle, unless the batch has no such divisor.

    Args:
        workers: of the whole job, P x D x T.
        batch: samples of a step, over all replicas.
        tensor: T.
        most_ranks: the largest P, such as the number of layers.

    Raises:
        ScheduleError: T does not divide the workers, or no D divides the batch.

    Example:
        >>> [tuple(one) for one in layouts(2, 4)]
        [(1, 2, 1, 1), (1, 2, 1, 2), (2, 1, 1, 2), (2, 1, 1, 4)]
    """
    if workers % tensor:
        raise ScheduleError(f"T = {tensor} does not divide {workers} devices; choose a T that does")
    found = []
    for ranks in _divisors(workers // tensor):
        replicas = workers // tensor // ranks
        if batch % replicas or (most_ranks is not None and ranks > most_ranks):
            continue
        every = _divisors(batch // replicas)
        found += [Layout(ranks, replicas, tensor, m) for m in [m for m in every if m >= ranks] or every[-1:]]
    if not found:
        raise ScheduleError(
            f"no layout of {workers} devices: a batch of {batch} samples must be divisible by D = devices / (P x T)"
            + (f", and P is at most {most_ranks}, the layers of the model" if most_ranks else "")
        )
    return found


def bases(
    layout: Layout,
    parts: Sequence[str],
    layers: Sequence[int],
    skeletons: Collection[str] = DEFAULT,
    *,
    transpose: bool = True,
) -> list[Base]:
    """List the backbones of a layout, with nothing and with each run of first parts transposed.

    Args:
        layout: P and M decide what makes sense: one rank has one order, `*v` needs M divisible by P.
        parts: of the model, from input to loss.
        layers: of each part.
        skeletons: those to try.
        transpose: whether anything may be transposed.

    Example:
        >>> for base in bases(Layout(2, 1, 1, 4), ["vision", "llm"], [2, 4], ["1f1b"]):
        ...     print(base.line())
        1f1b(vision+llm)
        1f1b(vision+llm, slabs=balanced)
        transpose(vision) >> 1f1b(llm)
        transpose(vision) >> 1f1b(llm, slabs=balanced)
    """
    if layout.ranks == 1:
        return [Base("", "1f1b", "+".join(parts))]
    found = []
    for first in range(len(parts) if transpose else 1):
        transposed, backbone = "+".join(parts[:first]), "+".join(parts[first:])
        chunks = _chunked(layout, sum(layers[first:]), skeletons)
        for slabs in ((), ("slabs=balanced",)):
            found += [Base(transposed, name, backbone, (*slabs, *fold), count) for name, fold, count in chunks]
    return found


def encodings(base: Base) -> list[str]:
    """List the options of `transpose` to try, the simple ones first; an inline encoder has none.

    Owners chosen for `place=warmup` are not among them: `place=fill` may do the same, and more.
    """
    if not base.transposed:
        return [""]
    return [*_SPLITS, *(", ".join(filter(None, (FILL, split))) for split in _SPLITS)]


def _chunked(layout: Layout, layers: int, skeletons: Collection[str]) -> list[tuple[str, tuple[str, ...], int]]:
    """List (skeleton, fold, v) that the layers suffice for."""
    ranks, found = layout.ranks, []
    if layers < ranks:
        return []
    folds = layers >= 2 * ranks
    if "1f1b" in skeletons:
        found.append(("1f1b", (), 1))
    if "interleaved" in skeletons and layout.micro_batches % ranks == 0:
        found += [("1f1b", (), v) for v in _CHUNKS if layers >= v * ranks]
    if "zb" in skeletons:
        found += [("zb", (), 1)] + [("zb", ("fold=v",), 1)] * folds
    if "wave" in skeletons and folds:
        found.append(("wave", (), 1))
    if "gpipe" in skeletons:
        found.append(("gpipe", (), 1))
    return found


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
