"""What every action costs: times by stage and kind, alpha-beta messages, and the shares of pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, I, Piece, Unit, W, micro_batch


@dataclass(frozen=True)
class Costs:
    """Durations of actions.

    Args:
        compute: (stage, kind) -> time, or a list of times by micro-batch; I and W that are missing are half of B.
        alpha: time of a message of zero bytes.
        beta: time per byte.
        message_bytes: (stage, SEND_F or SEND_B) -> bytes, or a list by micro-batch; missing means 0.
        shares: by micro-batch, the share of its encode's time and bytes that each piece has; for plans with `split`.

    Example:
        >>> Costs({(0, "F"): 1.0, (0, "B"): [2.0, 3.0]}).duration(Action(0, "B", 1))
        3.0
        >>> Costs({(0, "F"): 3.0}, shares=[(0.5, 0.5)]).duration(Action(0, "F", Piece(0, 1)))
        1.5
    """

    compute: Mapping[tuple[int, str], float | Sequence[float]]
    alpha: float = 0.0
    beta: float = 0.0
    message_bytes: Mapping[tuple[int, str], float | Sequence[float]] = field(default_factory=dict)
    shares: Sequence[Sequence[float]] = ()

    def duration(self, action: Action) -> float:
        """Time of a compute action, or of the message that a SEND starts."""
        key = (action.stage, action.kind)
        if action.kind in (SEND_F, SEND_B):
            return self.alpha + self.beta * self._pick(self.message_bytes.get(key, 0.0), action.mb)
        if action.kind in (I, W) and key not in self.compute:
            return self._pick(self.compute[action.stage, B], action.mb) / 2
        return self._pick(self.compute[key], action.mb)

    def _pick(self, value: float | Sequence[float], unit: Unit) -> float:
        """Return the part of a value, or of a list by micro-batch, that is a micro-batch's or a piece's."""
        mb = micro_batch(unit)
        whole = value[mb] if isinstance(value, Sequence) else value
        return whole * self.shares[mb][unit.index] if isinstance(unit, Piece) else whole

    def times(self, stage: int, kind: str, micro_batches: int) -> Sequence[float]:
        """`duration` of one stage and kind by micro-batch: for whoever walks whole programs."""
        key = (stage, kind)
        if kind in (SEND_F, SEND_B):
            sizes = self.message_bytes.get(key, 0.0)
            if isinstance(sizes, Sequence):
                return [self.alpha + self.beta * size for size in sizes]
            return [self.alpha + self.beta * sizes] * micro_batches
        halved = kind in (I, W) and key not in self.compute
        times = self.compute[stage, B] if halved else self.compute[key]
        if isinstance(times, Sequence):
            return [time / 2 for time in times] if halved else times
        return [times / 2 if halved else times] * micro_batches
