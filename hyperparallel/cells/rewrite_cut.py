"""Straight-line code cut into pieces: the encoder, found and moved to the front, then one piece for each layer.

The encoder is the maximal sub-graph that depends on the modality inputs and on no other input, down to parts of
expressions. Sizes and constants belong to no piece: each piece that needs one computes it again.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mindspore import Parameter

from hyperparallel.cells.rewrite_expression import is_scalar
from hyperparallel.cells.rewrite_layers import Item, item_of
from hyperparallel.cells.rewrite_modality import depends, find_modality, mixed
from hyperparallel.cells.rewrite_names import has_parameters
from hyperparallel.cells.rewrite_steps import Step, Steps
from hyperparallel.errors import ModelError

_PART_OF_MORE = (ast.Name, ast.Constant, ast.Slice, ast.Tuple, ast.List, ast.Starred, ast.Lambda, ast.keyword)
_SKIPPED = (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.IfExp, ast.BoolOp)


@dataclass
class Piece:
    """What becomes one layer.

    Args:
        name: of the layer.
        part: of the layer.
        steps: its code in order, with the sizes and constants that it needs.
        columns: inputs of the Cell that it reads.
        takes, gives: names of the values in the carry before and after it.
    """

    name: str
    part: str
    steps: list[Step]
    columns: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = field(default=())


def cut(steps: Steps, modality: Sequence[str] | None, parts: tuple[str, str]) -> list[Piece]:
    """Cut the code into the pieces of both parts.

    Args:
        steps: the code.
        modality: inputs that feed the encoder; None: found by `find_modality`.
        parts: names of the encoder's and the decoder's part.

    Raises:
        ModelError: no encoder, no decoder layers, or a value that could not travel between two pieces.

    Returns:
        Pieces in order, those of the encoder first.
    """
    modality = frozenset(find_modality(steps) if modality is None else modality)
    _split_expressions(steps, modality)
    _drop_unused(steps)
    encoder, decoder = _sides(steps, modality)
    pieces = _pieces(steps, encoder, parts[0], None) + _pieces(steps, decoder, parts[1], _main_list(steps, decoder))
    _connect(steps, pieces)
    return pieces


def _split_expressions(steps: Steps, modality: frozenset[str]) -> None:
    """Give parts of mixed expressions that depend on the modality inputs only a step of their own."""
    lifted: dict[str, str] = {}
    for step in list(steps.steps):
        if not isinstance(step.code[-1], ast.Assign) or len(step.code) > 1:
            continue
        of = depends(steps)
        own = of[step.targets[0]]
        if not own & modality or own <= modality:
            continue
        lifter = _Lifter(steps, step, of, modality, lifted)
        step.code[0].value = lifter.visit(step.code[0].value)
        place = steps.steps.index(step)
        steps.steps.remove(step)
        steps.add(step.frame, step.node, step.targets, step.code, step.cells, step.scalar, at=place)


class _Lifter(ast.NodeTransformer):
    """Replace the largest parts of an expression that depend on modality inputs only by names of new steps."""

    def __init__(self, steps: Steps, step: Step, of: Mapping, modality: frozenset[str], lifted: dict[str, str]):
        self.steps, self.step, self.of, self.modality, self.lifted = steps, step, of, modality, lifted

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, _SKIPPED):
            return node
        if isinstance(node, ast.Call):  # not `image.reshape` out of `image.reshape(h.shape)`
            if not self._pure(node):
                if isinstance(node.func, ast.Attribute):
                    node.func.value = self.visit(node.func.value)
                node.args = [self.visit(one) for one in node.args]
                for keyword in node.keywords:
                    keyword.value = self.visit(keyword.value)
                return node
        elif not isinstance(node, ast.expr) or isinstance(node, _PART_OF_MORE) or not self._pure(node):
            return self.generic_visit(node)
        text = ast.unparse(node)
        if text not in self.lifted:  # the same text is the same value: names are assigned once
            name, place = self.steps.fresh("lifted"), self.steps.steps.index(self.step)
            code = [ast.Assign([ast.Name(name, ast.Store())], node)]
            self.steps.add(self.step.frame, self.step.node, [name], code, at=place)
            self.lifted[text] = name
        return ast.Name(self.lifted[text], ast.Load())

    def _pure(self, node: ast.expr) -> bool:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in self.steps.values}
        inputs = frozenset().union(*(self.of[name] for name in names if name in self.of))
        return bool(inputs) and inputs <= self.modality and not is_scalar(node, self.steps.scalars)


def _drop_unused(steps: Steps) -> None:
    """Drop steps that the result does not depend on."""
    needed = {one.id for one in ast.walk(steps.returned) if isinstance(one, ast.Name)}
    for step in reversed(steps.steps):
        if needed & set(step.targets):
            needed |= step.reads
        else:
            step.targets = ()
    steps.steps = [step for step in steps.steps if step.targets]


def _holds_parameters(steps: Steps, step: Step) -> bool:
    values = [steps.held[name].value for name in step.held]
    return any(isinstance(value, Parameter) or has_parameters(value) for value in values)


def _is_free(steps: Steps, step: Step, inputs: frozenset[str]) -> bool:
    """Tell whether every piece can compute a step again: a size, or a constant."""
    return step.scalar or (not inputs and not _holds_parameters(steps, step))


def _sides(steps: Steps, modality: frozenset[str]) -> tuple[list[Step], list[Step]]:
    """Return the steps of the encoder and of the decoder, without those that are free."""
    of = depends(steps)
    encoder, decoder = [], []
    wanted: set[str] = set()  # by the encoder, of what depends on parameters only
    for step in reversed(steps.steps):
        inputs = of[step.targets[0]]
        if _is_free(steps, step, inputs):
            continue
        if (inputs and inputs <= modality) or (not inputs and wanted & set(step.targets)):
            encoder.insert(0, step)
            wanted |= step.reads
        else:
            decoder.insert(0, step)
    if not any(_holds_parameters(steps, step) and of[step.targets[0]] for step in encoder):
        raise _no_encoder(steps, of, modality)
    return encoder, decoder


def _no_encoder(steps: Steps, of: dict[str, frozenset[str]], modality: frozenset[str]) -> ModelError:
    for step in steps.steps:
        inputs = of[step.targets[0]]
        if inputs & modality and inputs - modality:
            return mixed(step, sorted(inputs & modality), sorted(inputs - modality))
    names = ", ".join(sorted(modality))
    return steps.frame.refuse(steps.frame.code, f"nothing with parameters depends on {names}; there is no encoder")


def _item(steps: Steps, step: Step) -> Item | None:
    found = (item_of(steps.cell, ref) for ref in step.cells)
    return next((item for item in found if item is not None), None)


def _main_list(steps: Steps, decoder: Sequence[Step]) -> tuple[str | int, ...]:
    """Return the path of the list whose layers the decoder calls most."""
    counts = Counter(item[0] for item in (_item(steps, step) for step in decoder) if item is not None)
    if counts:
        return counts.most_common(1)[0][0]
    if steps.failures:
        raise steps.failures[0]
    raise steps.frame.refuse(
        steps.frame.code,
        "no decoder layers found after the encoder; a `for` over an nn.CellList, an nn.SequentialCell of one class, or "
        "calls of self.layer0, self.layer1, ... was expected",
    )


def _pieces(steps: Steps, side: Sequence[Step], part: str, main: tuple[str | int, ...] | None) -> list[Piece]:
    """Cut before each layer and behind the last of each list; `main` is the list of the layers, None: any list."""
    groups: list[tuple[Item | None, list[Step]]] = [(None, [])]
    items = [item if item and main in (None, item[0]) else None for item in (_item(steps, one) for one in side)]
    ends = set({item[0]: index for index, item in enumerate(items) if item}.values())
    for index, (step, item) in enumerate(zip(side, items, strict=True)):
        if item or index - 1 in ends:
            groups.append((item, []))
        groups[-1][1].append(step)
    groups = [group for group in groups if group[1]]
    pieces: list[Piece] = []
    for item, own in groups:
        name = part if len(groups) == 1 else _name(steps, item, own, part, not pieces, own is groups[-1][1])
        used = sum(one.name.split("#")[0] == name for one in pieces)
        pieces.append(Piece(f"{name}#{used + 1}" if used else name, part, own))
    return pieces


def _name(steps: Steps, item: Item | None, own: list[Step], part: str, is_first: bool, is_last: bool) -> str:
    """Name a piece by its layer's place in the Cell, or by its place in the part."""
    if item is not None:
        called = next(ref for ref in own[0].cells if item_of(steps.cell, ref) == item)
        return ".".join(map(str, called.path))
    return f"{part}.{'input' if is_first else 'output' if is_last else 'between'}"


def _connect(steps: Steps, pieces: Sequence[Piece]) -> None:
    """Add what is free to the pieces that need it, and find their columns and carries."""
    order = {id(step): index for index, step in enumerate(steps.steps)}
    made_by = {name: step for step in steps.steps for name in step.targets}
    placed = {id(step) for piece in pieces for step in piece.steps}
    result = {one.id for one in ast.walk(steps.returned) if isinstance(one, ast.Name)} & steps.values
    needs, defined = [], []
    for piece in pieces:
        wanted = list(result) if piece is pieces[-1] else []
        for step in piece.steps:
            wanted += step.reads
        own = {id(step): step for step in piece.steps}
        while wanted:
            step = made_by.get(wanted.pop())
            if step is not None and id(step) not in placed and id(step) not in own:
                own[id(step)] = step
                wanted += step.reads
        piece.steps = sorted(own.values(), key=lambda step: order[id(step)])
        defined.append({name for step in piece.steps for name in step.targets})
        reads = set().union(*(step.reads for step in piece.steps), result if piece is pieces[-1] else ())
        piece.columns = tuple(name for name in steps.inputs if name in reads)
        needs.append(reads - defined[-1] - set(steps.inputs))
    for index, piece in enumerate(pieces[:-1]):
        later, before = set().union(*needs[index + 1 :]), set().union(*defined[: index + 1])
        crossing = [name for name in made_by if name in later & before]
        for name in crossing:
            _check_travels(made_by[name], piece, pieces[index + 1])
        piece.gives = pieces[index + 1].takes = tuple(crossing)


def _check_travels(step: Step, left: Piece, right: Piece) -> None:
    code = step.code[-1]
    if isinstance(code, ast.Assign) and isinstance(code.value, ast.Tuple | ast.List | ast.Dict):
        raise step.frame.refuse(
            step.node,
            f"a collection goes from layer {left.name!r} to {right.name!r}, where only single tensors go; give each of "
            "its tensors a name",
        )
