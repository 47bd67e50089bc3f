"""The seam table: which collective crosses the border of two regions, forward and backward.

Source: design, section 3 (arXiv 2607.03229).
"""

from __future__ import annotations

from typing import NamedTuple

from hyperparallel.algebra.skeletons import Layout

R, S = Layout.REPLICATED, Layout.SHARDED


class Seam(NamedTuple):
    """The collectives of one border; each becomes one message per micro-batch when lowered."""

    forward: str
    backward: str


SEAMS = {
    (R, S): Seam("Gather", "Scatter"),
    (S, S): Seam("Send", "RecvGrad"),
    (S, R): Seam("Scatter", "Gather"),
}
"""(left layout, right layout) -> seam. (Replicated, Replicated) has none: the normal form joins them."""


def seam(left: Layout, right: Layout) -> Seam:
    """Return the seam between two neighbouring regions, or between two slabs of one Sharded region."""
    return SEAMS[left, right]
