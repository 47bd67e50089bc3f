"""Expressions of a Cell's source, in the names of the straight-line code."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import TYPE_CHECKING

from mindspore import nn

from hyperparallel.cells.rewrite_layers import holds_layers
from hyperparallel.cells.rewrite_names import Const, Frame, NotKnown, Ref, Var, has_parameters, is_method

if TYPE_CHECKING:
    from hyperparallel.cells.rewrite_steps import Steps

_SIZES = ("shape", "ndim", "size", "dtype", "dim")
_SIZE_FUNCTIONS = ("len", "int", "min", "max", "tuple", "range", "float", "bool")


class Expression(ast.NodeTransformer):
    """Rewrite one expression: constants written out, objects of the Cell held by name, calls of Cells as own steps.

    Args:
        steps: gets a step for each call of a sub-Cell inside the expression.
        frame: the method that the expression is from.
        undecided: the statement whose course only the batch decides, if it is in one; nothing leaves that.
    """

    def __init__(self, steps: Steps, frame: Frame, undecided: ast.AST | None = None):
        self.steps, self.frame, self.undecided = steps, frame, undecided
        self.cells: list[Ref] = []  # called inside this expression
        self._inside = int(undecided is not None)  # > 0 where evaluation may be skipped or repeated
        self._top: ast.AST | None = None

    def top(self, node: ast.expr) -> ast.expr:
        """Rewrite an expression; its outermost call needs no step of its own."""
        self._top = node
        return self.visit(node)

    def visit(self, node: ast.AST) -> ast.AST:
        """Write out what is known before a step runs; else go by the kind of node."""
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            try:
                return ast.copy_location(ast.parse(repr(self.frame.known(node)), mode="eval").body, node)
            except NotKnown:
                pass
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A value of the step, an object of the Cell, or a global."""
        name = node.id
        if name in self.frame.hidden:
            return node
        found = self.frame.names.get(name)
        if isinstance(found, Var):
            return ast.copy_location(ast.Name(found.name, node.ctx), node)
        if isinstance(found, Ref):
            return self._object(node, found)
        if isinstance(found, Const):
            return self.steps.global_(name, found.value)
        if name in (self.frame.own, "super"):
            raise self.frame.refuse(node, f"it uses `{name}` as a whole, so what it needs of the Cell cannot be seen")
        try:
            return self.steps.global_(name, self.frame.outer(name))
        except NotKnown:
            raise self.frame.refuse(node, f"`{name}` has no value on the way here") from None

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """An object of the Cell, or an attribute of any other value."""
        if self.frame.is_mode(node):
            return ast.copy_location(ast.Attribute(ast.Name("self", ast.Load()), "training", ast.Load()), node)
        ref = self.frame.resolve(node)
        return self.generic_visit(node) if ref is None else self._object(node, ref)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """An object of the Cell, or an item of any other value."""
        ref = self.frame.resolve(node)
        return self.generic_visit(node) if ref is None else self._object(node, ref)

    def _object(self, node: ast.AST, ref: Ref) -> ast.expr:
        if is_method(ref.value) or (isinstance(ref.value, nn.Cell) and not ref.path):
            raise self.frame.refuse(node, "it passes on the Cell or a method of it, instead of calling it")
        return ast.copy_location(self.steps.hold(ref), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Calls of sub-Cells become steps; methods of the Cell, and sub-Cells with layers, are taken apart."""
        outermost, self._top = node is self._top, None
        ref = self.frame.resolve(node.func)
        if ref is None:
            return self.generic_visit(node)
        if is_method(ref.value):
            if self._inside:
                raise self.frame.refuse(node, "it calls a method of the Cell where it may not be run, or run often")
            me = ref.value.__self__
            return self.steps.inline(self.frame, node, Ref(ref.path[:-1], me), ref.value.__func__)
        if not isinstance(ref.value, nn.Cell):
            return self.generic_visit(node)
        return self._cell(node, ref, outermost)

    def _cell(self, node: ast.Call, ref: Ref, outermost: bool) -> ast.expr:
        if self._inside:
            if self.undecided is not None and has_parameters(ref.value):
                line = self.frame.place(self.undecided).split()[-1]
                raise self.frame.refuse(
                    node,
                    f"only the batch decides (line {line}) whether this Cell runs, so it has no fixed place in a plan",
                )
            self.cells.append(ref)
            return self.generic_visit(node)
        if isinstance(ref.value, nn.SequentialCell) and holds_layers(ref.value) and len(node.args) == 1:
            value = node.args[0]
            for index in range(len(ref.value)):
                item = ast.Subscript(node.func, ast.Constant(index), ast.Load())
                value = ast.fix_missing_locations(ast.copy_location(ast.Call(item, [value], []), node))
            self._top = value if outermost else None
            return self.visit_Call(value)
        inside = self.steps.taken_apart(self.frame, node, ref)
        if inside is not None:
            return inside
        call = self.generic_visit(node)
        if outermost:
            self.cells.append(ref)
            return call
        name = next(part for part in reversed(ref.path) if isinstance(part, str))
        return ast.Name(self.steps.emit(self.frame, node, [name], call, [ref])[0], ast.Load())

    def _skippable(self, node: ast.AST) -> ast.AST:
        self._inside += 1
        try:
            return self.visit(node)
        finally:
            self._inside -= 1

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """One branch where it is known which; else neither may leave the expression."""
        try:
            return self.visit(node.body if self.frame.known(node.test) else node.orelse)
        except NotKnown:
            node.test = self.visit(node.test)
            node.body, node.orelse = self._skippable(node.body), self._skippable(node.orelse)
            return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Only the first operand is evaluated for sure."""
        node.values = [self.visit(node.values[0]), *map(self._skippable, node.values[1:])]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        """Its arguments hide outer names."""
        return self._hiding([one.arg for one in node.args.args], node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Its loop variables hide outer names."""
        stored = [one for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)]
        return self._hiding([one.id for one in stored], node)

    visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_ListComp

    def _hiding(self, names: Collection[str], node: ast.AST) -> ast.AST:
        before = set(self.frame.hidden)
        self.frame.hidden |= set(names)
        self._inside += 1
        try:
            return self.generic_visit(node)
        finally:
            self.frame.hidden = before
            self._inside -= 1


def is_scalar(node: ast.AST, scalars: Collection[str]) -> bool:
    """Tell whether an expression is made of sizes and plain numbers only."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id in scalars
    if isinstance(node, ast.Attribute):
        return node.attr in _SIZES
    if isinstance(node, ast.Subscript):
        return is_scalar(node.value, scalars)
    if isinstance(node, ast.Call):
        function = node.func
        sizes = isinstance(function, ast.Name) and function.id in _SIZE_FUNCTIONS
        if isinstance(function, ast.Attribute) and function.attr in _SIZES:
            return True
        return sizes and all(is_scalar(one, scalars) for one in node.args)
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Tuple | ast.List | ast.Compare | ast.BoolOp):
        parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return all(is_scalar(one, scalars) for one in parts)
    return False


def written_names(node: ast.AST) -> list[str]:
    """List the names that a statement assigns, wholly or at an index."""
    names = []
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
            while isinstance(one, ast.Subscript):
                one = one.value
            names += [one.id] if isinstance(one, ast.Name) else []
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.append(one.id)
    return names
