"""`transpose`: the whole region on every rank, each micro-batch run by the one rank that owns it.

Source: arXiv 2607.03229. `place=warmup` is the paper's: all encodes of a rank before its first step of the
backbone, all encoder backwards after its last. `place=fill` and `owner=balanced` are decided by the planner, which
knows costs (`hyperparallel/planner/`); `split=s` encodes the images of a micro-batch in s pieces.
"""

from __future__ import annotations

from hyperparallel.algebra.skeletons.base import Option, Replicated, Value, is_name, is_name_or_list, register

MOST_PIECES = 64
"""More pieces of a micro-batch's images than this are a typing error."""


class Transpose(Replicated):
    """Data-parallel over the pipeline's own ranks."""

    name = "transpose"
    options = {
        "owner": Option(
            "roundrobin", is_name_or_list("roundrobin", "balanced"), "roundrobin, balanced or a list of M ranks"
        ),
        "place": Option("warmup", is_name("warmup", "fill"), "warmup or fill"),
        "split": Option(1, lambda value: isinstance(value, int) and 1 <= value <= MOST_PIECES, f"1 to {MOST_PIECES}"),
    }

    def owners(self, option: Value, ranks: int, pieces: int) -> tuple[int, ...]:
        """See `Replicated.owners`: `roundrobin` is n mod P."""
        if option == "roundrobin":
            return tuple(number % ranks for number in range(pieces))
        assert isinstance(option, tuple), f"owner={option} is decided by the planner"
        return option

    def around(self, steps: list, forward: list, backward: list) -> list:
        """See `Replicated.around`."""
        return forward + steps + backward


register(Transpose())
