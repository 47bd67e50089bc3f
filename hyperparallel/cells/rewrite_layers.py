"""Which sub-Cells of a Cell are layers: items of a list, or attributes numbered in their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mindspore import nn

from hyperparallel.cells.rewrite_names import Ref, has_parameters

_NUMBERED = re.compile(r"(.*?)_?(\d+)")

Item = tuple[tuple[str | int, ...], int]
"""A layer: (path of its list, its index); for `self.layer0` the list is ("layer*",)."""


def at(cell: nn.Cell, path: Sequence[str | int]) -> object:
    """Return the object of a Cell at a path."""
    for one in path:
        cell = cell[one] if isinstance(one, int) else getattr(cell, one)
    return cell


def is_layer_list(value: object) -> bool:
    """Tell whether a value is a list of layers: a CellList, or a SequentialCell of one class; all have parameters."""
    if isinstance(value, nn.CellList):
        return len(value) > 0 and all(map(has_parameters, value))
    if isinstance(value, nn.SequentialCell):
        return len(value) > 1 and all(map(has_parameters, value)) and len({type(one) for one in value}) == 1
    return False


def item_of(cell: nn.Cell, ref: Ref) -> Item | None:
    """Return which layer a sub-Cell is, or None."""
    if not ref.path:
        return None
    last, parent = ref.path[-1], at(cell, ref.path[:-1])
    if isinstance(last, int):
        return (ref.path[:-1], last) if is_layer_list(parent) else None
    stem = _stem(parent, last) if isinstance(parent, nn.Cell) else None
    return ((*ref.path[:-1], f"{stem}*"), int(_NUMBERED.fullmatch(last)[2])) if stem is not None else None


def _stem(parent: nn.Cell, name: str) -> str | None:
    """Return `layer` for `layer0` if a sibling such as `layer1` has the same class, which the user wrote."""
    found = _NUMBERED.fullmatch(name)
    own = parent.name_cells().get(name)
    if found is None or not has_parameters(own) or not is_users(own):
        return None
    for other, cell in parent.name_cells().items():
        match = _NUMBERED.fullmatch(other)
        if other != name and match and match[1] == found[1] and type(cell) is type(own):
            return found[1]
    return None


def takes_apart(cell: nn.Cell, ref: Ref) -> bool:
    """Tell whether a sub-Cell is no layer itself but holds layers, so that its own source must be read."""
    return item_of(cell, ref) is None and is_users(ref.value) and holds_layers(ref.value)


def holds_layers(cell: nn.Cell) -> bool:
    """Tell whether a Cell whose source is the user's, or a SequentialCell of such, has layers at any depth."""
    if isinstance(cell, nn.SequentialCell):
        return is_layer_list(cell) or any(map(holds_layers, cell))
    if not is_users(cell):
        return False
    children = cell.name_cells()
    return any(
        is_layer_list(child) or _stem(cell, name) is not None or holds_layers(child) for name, child in children.items()
    )


def is_users(value: object) -> bool:
    """Tell whether a value is a Cell whose class is not MindSpore's own."""
    return isinstance(value, nn.Cell) and type(value).__module__.split(".")[0] != "mindspore"
