"""`transpose`: the whole region on every rank, each micro-batch run by the one rank that owns it.

Source: arXiv 2607.03229. `place=warmup` is the paper's: all encodes of a rank before its first step of the
backbone, all encoder backwards after its last.
"""

from __future__ import annotations

from hyperparallel.algebra.skeletons.base import Option, Replicated, Value, is_name, is_name_or_list, register


class Transpose(Replicated):
    """Data-parallel over the pipeline's own ranks."""

    name = "transpose"
    options = {
        "owner": Option("roundrobin", is_name_or_list("roundrobin"), "roundrobin or a list of M ranks"),
        "place": Option("warmup", is_name("warmup"), "warmup"),
    }

    def owners(self, option: Value, ranks: int, micro_batches: int) -> tuple[int, ...]:
        """See `Replicated.owners`: `roundrobin` is m mod P."""
        if option == "roundrobin":
            return tuple(mb % ranks for mb in range(micro_batches))
        return tuple(option)

    def around(self, steps: list, forward: list, backward: list) -> list:
        """See `Replicated.around`."""
        return forward + steps + backward


register(Transpose())
