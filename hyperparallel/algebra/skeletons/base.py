"""What a skeleton is, and the one registry that holds them all.

A skeleton is the pattern of one region: how its layers lie on the ranks (layout) and in which order a rank
runs them. To add one, write a file beside this one that subclasses `Sharded` or `Replicated` and registers an
instance; the parametrised tests pick it up by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

Value = int | str | tuple[int, ...]
"""What an option can hold in a schedule line: `4`, `roundrobin`, `[7,5,5,5]`."""

Step = tuple[str, int]
"""One compute step of a region on one rank: (kind, micro-batch), kind "F" or "B"."""


class Layout(Enum):
    """How a region's layers lie on the ranks: spread over them, or whole on every one."""

    SHARDED = "Sharded"
    REPLICATED = "Replicated"


@dataclass(frozen=True)
class Option:
    """Describe one `key=value` of a skeleton: its default, a test of a value and the words for an error."""

    default: Value
    accepts: Callable[[Value], bool]
    expected: str


def is_name(*names: str) -> Callable[[Value], bool]:
    """Return a test that accepts exactly these words."""
    return lambda value: value in names


def is_name_or_list(*names: str) -> Callable[[Value], bool]:
    """Return a test that accepts these words or a non-empty list of integers."""
    return lambda value: value in names or (isinstance(value, tuple) and len(value) > 0)


class Skeleton(ABC):
    """Common ground of all skeletons: a name for schedule lines, a layout and its options."""

    name: str
    layout: Layout
    options: Mapping[str, Option]


class Sharded(Skeleton):
    """A skeleton that spreads its region's layers over the ranks, slab r on rank r."""

    layout = Layout.SHARDED
    options = {"slabs": Option("even", is_name_or_list("even", "balanced"), "even, balanced or a list of layer counts")}

    @abstractmethod
    def steps(self, rank: int, ranks: int, micro_batches: int, backward: bool) -> list[Step]:
        """Order the region's steps on one rank.

        Args:
            rank: 0..ranks-1.
            ranks: P >= 1.
            micro_batches: M >= 1, any M, also M < P.
            backward: whether this rank's slab has backward events at all (footprint gate ii).

        Returns:
            Every forward once and, if `backward`, every backward once.
        """


class Replicated(Skeleton):
    """A skeleton that puts its whole region on every rank; each micro-batch is run by its owner only."""

    layout = Layout.REPLICATED

    @abstractmethod
    def owners(self, option: Value, ranks: int, micro_batches: int) -> tuple[int, ...]:
        """Return the owner rank of every micro-batch for a value of the option `owner`."""

    @abstractmethod
    def around(self, steps: list, forward: list, backward: list) -> list:
        """Place a rank's own forwards and backwards of this region around its other steps.

        Args:
            steps: the rank's steps of the Sharded regions, in order.
            forward: the region's forwards that this rank owns, by micro-batch.
            backward: its backwards, by micro-batch; empty when the region has none.

        Returns:
            All of them, in the order in which the rank runs them.
        """


_REGISTRY: dict[str, Skeleton] = {}


def register(skeleton: Skeleton) -> None:
    """Add a skeleton under its name; a name can be taken once."""
    assert skeleton.name not in _REGISTRY, f"skeleton {skeleton.name!r} is registered twice"
    _REGISTRY[skeleton.name] = skeleton


def registry() -> Mapping[str, Skeleton]:
    """Return all skeletons by name, in the order of registration."""
    return dict(_REGISTRY)
