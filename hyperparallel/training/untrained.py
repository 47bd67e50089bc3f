"""Which trainable parameters never got a gradient: most often a layer that nothing uses."""

from __future__ import annotations

from hyperparallel.cells.state import AnyRunner, state_of
from hyperparallel.tensors import SECOND
from hyperparallel.training.agree import share_texts


def untrained(runner: AnyRunner) -> list[str]:
    """Name the trainable parameters whose gradient was exactly zero in every update; every worker calls this.

    Args:
        runner: has made at least one update. AdamW's second moment, which remembers every gradient, is looked at, so
            steps before a resume count too.

    Returns:
        Global names in order, the same on every worker.
    """
    own = [
        one.name.removeprefix(SECOND)
        for one in state_of(runner)
        if one.name.startswith(SECOND) and not one.copies[0].asnumpy().any()
    ]
    texts = share_texts(runner.transport, "\n".join(own))
    return sorted({name for text in texts.values() for name in text.splitlines()})


def warning(names: list[str], steps: int) -> str:
    """Say it in one sentence."""
    some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"{len(names)} trainable parameters never got a gradient in {steps} steps: {some}; freeze them (model.freeze), "
        "or see whether the model uses them and the data have what they are for"
    )
