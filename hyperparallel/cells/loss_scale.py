"""The factor on the loss of a float16 job, by which gradients do not fall below the smallest number of the type."""

from __future__ import annotations

_LARGEST = 2.0**24


class LossScale:
    """Halve the factor after an overflow, double it after a window of steps without one.

    Args:
        value: at the start, >= 1; 1 stays so, for types that need none.
        window: steps without overflow after which it doubles, up to 2^24.

    Example:
        >>> scale = LossScale(8.0, window=2)
        >>> [scale.update(finite) or scale.value for finite in (True, False, True, True, True)]
        [8.0, 4.0, 4.0, 8.0, 8.0]
    """

    def __init__(self, value: float = 1.0, window: int = 1000) -> None:
        self.value, self.window = float(value), window
        self.dynamic = value > 1
        self.good = 0  # steps since it last changed

    def update(self, finite: bool) -> None:
        """Take note of a step.

        Args:
            finite: whether all gradients were; the same on every rank.
        """
        if not self.dynamic:
            return
        if not finite:
            self.value, self.good = max(1.0, self.value / 2), 0
            return
        self.good += 1
        if self.good == self.window:
            self.value, self.good = min(_LARGEST, self.value * 2), 0

    @property
    def can_fall(self) -> bool:
        """Whether an overflow may be the factor's, rather than the model's."""
        return self.dynamic and self.value > 1

    def state(self) -> tuple[float, int]:
        """Return what a checkpoint keeps: value and steps since it last changed."""
        return self.value, self.good

    def restore(self, value: float, good: int) -> None:
        """Go on from `state`; a scale that is not dynamic stays 1."""
        if self.dynamic:
            self.value, self.good = value, good
