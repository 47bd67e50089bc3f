"""What a skeleton is, and the one registry that holds them all.

A skeleton is the pattern of one region: how its layers lie on the ranks (layout) and in which order a rank
runs them. To add one, write a file beside this one that subclasses `Sharded` or `Replicated` and registers an
instance; the parametrised tests pick it up by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hyperparallel.algebra.program import Action

if TYPE_CHECKING:
    from hyperparallel.algebra.placement import Placement

Value = int | str | tuple[int, ...]
"""What an option can hold in a schedule line: `4`, `roundrobin`, `[7,5,5,5]`."""


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


@dataclass(frozen=True)
class Wave:
    """Consecutive Sharded regions (chunks) that are ordered together, as a skeleton sees them.

    Args:
        placement: paths and gates of all stages.
        chunks: the regions, by index, in input-to-loss order.
    """

    placement: Placement
    chunks: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """P."""
        return self.placement.ranks

    def keep(self, rank: int, steps: Iterable[tuple[int, str, int]]) -> list[Action]:
        """Turn steps (chunk, kind, micro-batch) of one rank into actions, dropping what does not exist.

        A skeleton may order more micro-batches than there are, and backwards that the gates switch off. Every
        dependency stays within one micro-batch and within what the gates leave, so what remains of an order that
        works still works.
        """
        actions = []
        for chunk, kind, mb in steps:
            stage = self.chunks[chunk] * self.ranks + rank
            if mb < self.placement.micro_batches and (kind == "F" or self.placement.gates[stage].receives_gradient):
                actions.append(Action(stage, kind, mb))
        return actions


class Sharded(Skeleton):
    """A skeleton that spreads its region's layers over the ranks, slab r on rank r."""

    layout = Layout.SHARDED
    options = {"slabs": Option("even", is_name_or_list("even", "balanced"), "even, balanced or a list of layer counts")}
    splits = False
    """Whether backwards come in two parts, I and W."""

    def folds(self, option: Callable[[str], Value]) -> tuple[bool, ...]:
        """Say which regions one count of this skeleton makes: one, or two of which the second is reflected."""
        return (False,)

    @abstractmethod
    def orders(self, wave: Wave) -> list[list[Action]]:
        """Order a wave's actions on every rank.

        Args:
            wave: its chunks all have this skeleton; any P >= 1 and M >= 1, also M < P.

        Returns:
            Per rank, every forward once and every backward that the gates ask for once.
        """


class Replicated(Skeleton):
    """A skeleton that puts its whole region on every rank; each micro-batch is run by its owner only."""

    layout = Layout.REPLICATED

    @abstractmethod
    def owners(self, option: Value, ranks: int, pieces: int) -> tuple[int, ...]:
        """Return the owner ranks for a value of the option `owner`: of M micro-batches, or of all their pieces."""

    @abstractmethod
    def around(self, steps: list, forward: list, backward: list) -> list:
        """Place a rank's own forwards and backwards of this region around its other steps.

        Args:
            steps: the rank's steps of the Sharded regions, in order.
            forward: the region's forwards that this rank owns, by micro-batch (and piece).
            backward: its backwards, by micro-batch (and piece); empty when the region has none.

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
