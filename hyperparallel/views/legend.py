"""The legend under the text timeline; it explains only what is in the picture."""

from __future__ import annotations

from collections.abc import Collection

from hyperparallel.algebra import Action
from hyperparallel.cost import Timeline
from hyperparallel.views.bars import IDLE, MIXED, bar, letter

_NAMES = {
    ("F", True): "encode",
    ("F", False): "forward",
    ("B", False): "backward",
    ("I", False): "input gradient",
    ("W", False): "weight gradient",
    ("B", True): "encoder backward",
    ("I", True): "encoder input gradient",
    ("W", True): "encoder weight gradient",
}
"""(kind, replicated?) -> words, in the order of the legend. A replicated region at the input is the encoder."""


def bar_legend(
    timeline: Timeline, replicated: Collection[int], hidden: int, width: int, lanes: bool = False
) -> list[str]:
    """Explain bars.

    Args:
        timeline: what is drawn.
        replicated: stages of Replicated regions.
        hidden: number of actions that are too short to be drawn.
        width: longest line.
        lanes: whether every stage has a row of its own.
    """
    examples, names = _examples(timeline, replicated), _names(timeline, replicated)
    items = [f"{bar(action, len(str(action)) + 4, pair[1])} {names[pair]}" for pair, action in examples.items()]
    items += [f"{IDLE} idle"] + ["blank: busy with another stage"] * lanes
    if examples:
        (kind, alone), action = max(examples.items(), key=lambda item: item[1].stage)
        items.append(f"{action} = stage {action.stage}, {names[kind, alone]}, micro-batch {action.mb}")
        sign = letter(kind, alone)
        forms = [bar(action, len(str(action.mb)) + 2, alone), f"{sign}{action.mb}", sign]
        items.append("when short: " + ", ".join(forms))
    if hidden:
        items.append(f"not drawn: {hidden} action{'s' * (hidden > 1)} shorter than half a column")
    return _wrap(items, width)


def coarse_legend(
    timeline: Timeline, replicated: Collection[int], per_column: str, width: int, lanes: bool = False
) -> list[str]:
    """Explain columns that hold several actions each.

    Args:
        timeline, replicated, width, lanes: see `bar_legend`.
        per_column: time of one column, printed.
    """
    kinds, names = list(_examples(timeline, replicated)), _names(timeline, replicated)
    items = [f"one column = {per_column}, by what fills it:"]
    items += [f"{letter(*pair)} {names[pair]}" for pair in kinds]
    items += [f"{MIXED} several of these"] * (len(kinds) > 1)
    items.append(f"{IDLE} idle for half of it or more")
    return _wrap([*items, *["blank: more of it goes to another stage"] * lanes], width)


def _names(timeline: Timeline, replicated: Collection[int]) -> dict[tuple[str, bool], str]:
    """Return the words; replicated regions that are not only at the input are not called encoders."""
    if max(replicated, default=0) < len(timeline.spans):
        return _NAMES
    words = {pair: name.removeprefix("encoder ") for pair, name in _NAMES.items()} | {("F", True): "forward"}
    return {pair: ("transposed " if pair[1] else "") + name for pair, name in words.items()}


def _examples(timeline: Timeline, replicated: Collection[int]) -> dict[tuple[str, bool], Action]:
    """Find the first action of each (kind, replicated?) pair that occurs."""
    found: dict[tuple[str, bool], Action] = {}
    for row in timeline.spans:
        for action, _, _ in row:
            found.setdefault((action.kind, action.stage in replicated), action)
    return {pair: found[pair] for pair in _NAMES if pair in found}


def _wrap(items: list[str], width: int) -> list[str]:
    """Lay items out in lines; an item is never broken."""
    lines = [items[0]]
    for item in items[1:]:
        if len(lines[-1]) + 3 + len(item) <= width:
            lines[-1] += "   " + item
        else:
            lines.append(item)
    return lines
