"""Colours of the figure: a hue per part that colour-blind readers can tell apart, a lightness per kind.

Hues: Okabe and Ito, "Color Universal Design". Lightness alone tells the kinds apart, so grey print works too.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import B, F
from hyperparallel.cost import Costs
from hyperparallel.cost.parts import backbone

BUBBLE, LIVE, INK = "#e4e4e4", "#6b6b6b", "#1a1a1a"
_BACKBONE = "#0072b2"
_OTHERS = ("#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442")
_MIX = {"F": (0.52, 255), "B": (0.0, 0), "I": (0.45, 0), "W": (0.80, 255)}
"""kind -> (how much of white or black is mixed in, 255 or 0)."""

KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""Words of the kinds, in the order of the legend."""


def hues(plans: Sequence[Plan]) -> dict[str, str]:
    """Choose a hue for every part of some plans: blue for the backbone."""
    found: dict[str, str] = {}
    for plan in plans:
        for part in plan.model.parts:
            if part == backbone(plan.schedule, plan.model.parts):
                found.setdefault(part, _BACKBONE)
            elif part not in found:
                others = sum(hue != _BACKBONE for hue in found.values())
                found[part] = _OTHERS[others % len(_OTHERS)]
    return found


def shade(hue: str, kind: str) -> str:
    """Return the colour of a kind in a part's hue.

    Example:
        >>> [shade("#0072b2", kind) for kind in "FBIW"]
        ['#85bbda', '#0072b2', '#003f62', '#cce3f0']
    """
    amount, towards = _MIX[kind]
    channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (towards - channel) * amount):02x}" for channel in channels)


def ink(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "#ffffff"


def shares(plan: Plan, costs: Costs, stage: int) -> dict[str, list[tuple[str, float]]]:
    """Split a stage's time among the parts whose layers it holds, by the costs of the layers.

    Layers that have no backward put all their cost into the forward; the others divide what is left alike.

    Args:
        plan: gives the layers and their costs.
        costs: durations of the stage, whose forward is to be split.
        stage: its index.

    Returns:
        F and B -> (part, share of the time), in the order in which they run.
    """
    first, last = plan.placement.slabs[stage]
    layers = plan.model.layers[first:last]
    parts = list(dict.fromkeys(layer.part for layer in layers))
    if len(parts) == 1:
        return {F: [(parts[0], 1.0)], B: [(parts[0], 1.0)]}
    trains = next((index for index, layer in enumerate(plan.model.layers) if layer.trainable), len(plan.model.layers))
    only, both = dict.fromkeys(parts, 0.0), dict.fromkeys(parts, 0.0)
    for index, layer in enumerate(layers, first):
        (both if index >= trains else only)[layer.part] += layer.cost
    forward, backward = _mean(costs, stage, F), _mean(costs, stage, B)
    total = sum(only.values()) + sum(both.values())
    scale = (forward + backward) / total if total else 0.0
    rest = max(0.0, forward - scale * sum(only.values())) / (sum(both.values()) or 1.0)
    ahead = _normal({part: scale * only[part] + rest * both[part] for part in parts})
    return {F: ahead, B: _normal(both)[::-1]}


def _normal(weights: dict[str, float]) -> list[tuple[str, float]]:
    """Make weights add up to 1, alike where all are 0; leave out parts without weight."""
    total = sum(weights.values())
    if not total:
        return [(part, 1 / len(weights)) for part in weights]
    return [(part, weight / total) for part, weight in weights.items() if weight]


def _mean(costs: Costs, stage: int, kind: str) -> float:
    value = costs.compute.get((stage, kind), 0.0)
    return sum(value) / len(value) if isinstance(value, Sequence) else value
