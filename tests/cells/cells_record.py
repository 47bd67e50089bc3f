"""Watch a runner from outside: what it sends and sums, and the gradients it ends a step with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from hyperparallel.cells import own_slabs
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.stepwise import Runner

_compiled: dict[tuple, Slab] = {}


def reuse_slabs(dtype: str = "float32") -> None:
    """Let runners of equal slabs share one compiled Cell; each starts from weights that were built for it anew.

    Args:
        dtype: type that those who run from now on compute in.
    """

    def build(layers: Sequence[Layer], span: tuple[int, int], seed: int, **options: bool) -> Slab:
        fresh = Slab(layers, span, seed, **options)
        facts = tuple((layer.name, layer.trainable, layer.columns) for layer in layers)
        key = (span, facts, dtype, *sorted(options.items()))
        if key not in _compiled:
            _compiled[key] = fresh
        for old, new in zip(_compiled[key].chain.get_parameters(), fresh.chain.get_parameters(), strict=True):
            ops.assign(old, Tensor(new.asnumpy()))  # in place: a compiled graph does not see `set_data`
        return _compiled[key]

    own_slabs.Slab = build


class Watch:
    """Record the messages, sums and gradients of a runner, step by step.

    Args:
        runner: its transport and gradients are wrapped.
    """

    def __init__(self, runner: Runner):
        self.steps: list[dict[str, Any]] = []
        self._wrap(runner.transport, "send", self._sent)
        self._wrap(runner.transport, "sum", self._summed)
        self._wrap(runner.gradients, "reduce", lambda *_: None, self._reduced)
        self._names = [one.name for one in runner.gradients.shared]
        self._undo = [(runner.transport, "send"), (runner.transport, "sum")]

    def begin(self) -> None:
        """Start a new step."""
        self.steps.append({"sends": [], "sums": [], "gradients": {}})

    def end(self) -> None:
        """Leave the transport, which other runners use too, as it was."""
        for owner, name in self._undo:
            delattr(owner, name)

    def _wrap(self, owner: object, name: str, before: Any, after: Any = lambda _: None) -> None:
        original = getattr(owner, name)

        def call(*args):
            before(*args)
            result = original(*args)
            after(result)
            return result

        setattr(owner, name, call)

    def _sent(self, peer: int, tag: Any, arrays: Sequence[np.ndarray]) -> None:
        self.steps[-1]["sends"].append([peer, str(tag.action), [[list(a.shape), a.dtype.str] for a in arrays]])

    def _summed(self, values: np.ndarray, ranks: Sequence[int], what: str) -> None:
        self.steps[-1]["sums"].append([sorted(ranks), int(values.size)])

    def _reduced(self, gradients: Sequence[np.ndarray]) -> None:
        sizes = zip(self._names, gradients, strict=True)
        self.steps[-1]["gradients"] = {name: float(np.abs(gradient).max()) for name, gradient in sizes}


def own_columns(runner: Runner, batch: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Keep only what a rank asks for, so a stage that read anything else would fail."""
    own: list[dict[str, np.ndarray]] = [{} for _ in batch]
    for micro_batches, columns in runner.requests.values():
        for mb in micro_batches:
            own[mb].update({column: batch[mb][column] for column in columns})
    return own
