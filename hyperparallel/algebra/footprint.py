"""The backward footprint: which backward events a cut and a model ask for, whatever the schedule.

Source: design, section 3 (arXiv 2607.03229). The gates are stated for regions; a region's slabs in
input-to-loss order are a finer cut of the same sequence, and the same three lines hold for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Gates(NamedTuple):
    """The three gates of one region (or slab)."""

    sends_gradient: bool
    """(i) sends a gradient upstream: something before it is trainable."""
    receives_gradient: bool
    """(ii) receives a gradient, so it has backward events: something before it, or itself, is trainable."""
    reduces: bool
    """(iii) reduces weight gradients: itself is trainable."""


def footprint(trainable: Sequence[bool]) -> tuple[Gates, ...]:
    """Return the gates of every region from whether each is trainable, in input-to-loss order.

    Example:
        >>> for gates in footprint([False, True, False]):
        ...     print(*gates)
        False False False
        False True True
        True True False
    """
    gates, upstream = [], False
    for own in trainable:
        gates.append(Gates(upstream, upstream or own, own))
        upstream = upstream or own
    return tuple(gates)
