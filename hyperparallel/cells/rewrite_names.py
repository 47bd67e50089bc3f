"""What the expressions of a Cell's source stand for before anything runs: sub-Cells, constants, decided conditions."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from mindspore import nn

from hyperparallel.errors import ModelError

PLAIN = (bool, int, float, str, type(None))
CONTAINERS = (nn.CellList, nn.SequentialCell, list, tuple)
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY = {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}


@dataclass(frozen=True)
class Ref:
    """An object of the Cell: `self.vision.blocks[2]` is path ("vision", "blocks", 2)."""

    path: tuple[str | int, ...]
    value: Any


@dataclass(frozen=True)
class Const:
    """A plain Python value, or a tuple of them."""

    value: Any


@dataclass(frozen=True)
class Var:
    """A value of the running step, by its name in the straight-line code; every name is assigned once."""

    name: str


class NotKnown(Exception):
    """An expression that only a running step can decide; never leaves this package."""


@dataclass
class Frame:
    """A method whose source is being read: `construct` of the Cell or of a sub-Cell that is taken apart too.

    Args:
        me: where its `self` is in the whole Cell.
        function: the method.
    """

    me: Ref
    function: Callable
    names: dict[str, Ref | Const | Var] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)  # names bound inside an expression, by a lambda or comprehension

    def __post_init__(self):
        self.function = inspect.unwrap(self.function)
        try:
            lines, first = inspect.getsourcelines(self.function)
            self.file = inspect.getsourcefile(self.function)
        except OSError:
            raise ModelError(
                f"{self.function.__qualname__} has no source file, so it cannot be taken apart; save the Cell in a "
                "file, or give a list of Layer (docs/own_model.md)"
            ) from None
        self.lines, self.first = lines, first
        self.code: ast.FunctionDef = ast.parse(textwrap.dedent("".join(lines))).body[0]
        self.own = self.code.args.args[0].arg if self.code.args.args else "self"

    def place(self, node: ast.AST) -> str:
        """Return file and line of a piece of source."""
        return f"{self.file}, line {self.first + getattr(node, 'lineno', 1) - 1}"

    def refuse(self, node: ast.AST, why: str) -> ModelError:
        """Make the error for source that cannot be taken: file, line, the line itself, why, and the way out."""
        text = self.lines[getattr(node, "lineno", 1) - 1].strip()
        return ModelError(
            f"{self.place(node)}: `{text}`: {why}; change the line, or give the model as a list of Layer "
            "(docs/own_model.md)"
        )

    def outer(self, name: str) -> Any:
        """Return what a global, builtin or closure name stands for.

        Raises:
            NotKnown: nothing.
        """
        cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
        if name in cells:
            return cells[name].cell_contents
        for scope in (self.function.__globals__, vars(builtins)):
            if name in scope:
                return scope[name]
        raise NotKnown(name)

    def resolve(self, node: ast.AST) -> Ref | None:
        """Follow `self.a.b[2]` through Cells and their lists; None where it leads to anything else."""
        if isinstance(node, ast.Name) and node.id not in self.hidden:
            if node.id == self.own and node.id not in self.names:
                return self.me
            found = self.names.get(node.id)
            return found if isinstance(found, Ref) else None
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            if self.is_mode(node):
                return None
            if base is not None and isinstance(base.value, nn.Cell) and hasattr(base.value, node.attr):
                return Ref((*base.path, node.attr), getattr(base.value, node.attr))
        if isinstance(node, ast.Subscript):
            base = self.resolve(node.value)
            if base is not None and isinstance(base.value, CONTAINERS):
                return self._item(base, node.slice)
        return None

    def is_mode(self, node: ast.Attribute) -> bool:
        """Tell whether an attribute is `self.training`, the one plain value that changes between steps."""
        base = self.resolve(node.value)
        return node.attr == "training" and base is not None and isinstance(base.value, nn.Cell)

    def _item(self, base: Ref, index: ast.AST) -> Ref | None:
        try:
            number = self.known(index)
        except NotKnown:
            return None
        if not isinstance(number, int) or not -len(base.value) <= number < len(base.value):
            return None
        number %= len(base.value)
        return Ref((*base.path, number), base.value[number])

    def known(self, node: ast.AST) -> Any:
        """Return the value of an expression that no batch can change.

        Raises:
            NotKnown: it is not a plain value or a tuple of them, or depends on the batch.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.known(one) for one in node.elts)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return _UNARY[type(node.op)](self.known(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return self._apply(_ARITHMETIC[type(node.op)], self.known(node.left), self.known(node.right))
        if isinstance(node, ast.BoolOp):
            return self._bool(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node)
        if isinstance(node, ast.Call):
            return self._length(node)
        return self._named(node)

    def _bool(self, node: ast.BoolOp) -> Any:
        stops = isinstance(node.op, ast.Or)
        for one in node.values:
            value = self.known(one)
            if bool(value) is stops:
                return value
        return value

    def _compare(self, node: ast.Compare) -> bool:
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None:
            return self._is_none(left) is isinstance(node.ops[0], ast.Is)
        return self._apply(_COMPARE[type(node.ops[0])], self.known(left), self.known(right))

    def _is_none(self, node: ast.AST) -> bool:
        """A value of the step is never None: None does not travel between ranks."""
        if isinstance(node, ast.Name) and isinstance(self.names.get(node.id), Var):
            return False
        ref = self.resolve(node)
        return ref.value is None if ref is not None else self.known(node) is None

    def _length(self, node: ast.Call) -> int:
        if not (isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1):
            raise NotKnown
        ref = self.resolve(node.args[0])
        return len(ref.value) if ref and isinstance(ref.value, CONTAINERS) else self._apply(len, self.known(*node.args))

    def _named(self, node: ast.AST) -> Any:
        ref = self.resolve(node)
        if ref is not None:
            if not is_plain(ref.value):
                raise NotKnown
            return ref.value
        if isinstance(node, ast.Name) and node.id not in self.hidden:
            found = self.names[node.id] if node.id in self.names else Const(self.outer(node.id))
            if isinstance(found, Const) and is_plain(found.value):
                return found.value
        if isinstance(node, ast.Subscript):
            return self._apply(operator.getitem, self.known(node.value), self.known(node.slice))
        raise NotKnown

    @staticmethod
    def _apply(function: Callable, *values: Any) -> Any:
        try:
            return function(*values)
        except (TypeError, ValueError, ArithmeticError, LookupError):
            raise NotKnown from None  # wrong in the user's source too; let it fail where it always did

    def items(self, node: ast.AST) -> list[tuple[Ref | Const, ...]] | None:
        """List what a `for` runs over, a tuple of values for each turn; None if only a running step knows."""
        ref = self.resolve(node)
        if ref is not None and isinstance(ref.value, CONTAINERS) and not is_plain(ref.value):
            return [(Ref((*ref.path, index), one),) for index, one in enumerate(ref.value)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._called_items(node.func.id, node.args)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self._sliced_items(node)
        try:
            values = self.known(node)
        except NotKnown:
            return None
        return [(Const(value),) for value in values] if isinstance(values, tuple | list) else None

    def _called_items(self, name: str, arguments: Sequence[ast.AST]) -> list[tuple[Ref | Const, ...]] | None:
        if name == "range":
            try:
                return [(Const(value),) for value in range(*(self.known(one) for one in arguments))]
            except NotKnown:
                return None
        if name not in ("enumerate", "zip", "reversed") or (name != "zip" and len(arguments) != 1):
            return None
        lists = [self.items(one) for one in arguments]
        if None in lists:
            return None
        if name == "zip":
            return [tuple(one[0] for one in row) for row in zip(*lists, strict=False)]
        if name == "reversed":
            return lists[0][::-1]
        return [(Const(index), *row) for index, row in enumerate(lists[0])]

    def _sliced_items(self, node: ast.Subscript) -> list[tuple[Ref | Const, ...]] | None:
        whole = self.items(node.value)
        bounds = (node.slice.lower, node.slice.upper, node.slice.step)
        try:
            known = [None if bound is None else self.known(bound) for bound in bounds]
        except NotKnown:
            return None
        return None if whole is None else whole[slice(*known)]


def is_plain(value: Any) -> bool:
    """Tell whether a value can be written into source as it is."""
    return isinstance(value, PLAIN) or (isinstance(value, tuple | list) and all(map(is_plain, value)))


def is_method(value: Any) -> bool:
    """Tell whether a value is a method that a user wrote for a Cell."""
    return (
        isinstance(value, MethodType)
        and isinstance(value.__self__, nn.Cell)
        and not value.__func__.__module__.startswith("mindspore.")
    )


def has_parameters(value: Any) -> bool:
    """Tell whether a Cell holds a parameter at any depth."""
    return isinstance(value, nn.Cell) and any(True for _ in value.get_parameters())
