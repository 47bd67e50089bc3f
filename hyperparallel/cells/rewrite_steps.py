"""A Cell's `construct` as straight-line code: loops over layers unrolled, sub-Cells that hold layers taken apart.

Every value gets a name that is assigned once, so that steps can be moved and cut apart (`rewrite_cut`).
"""

from __future__ import annotations

import ast
import copy
import inspect
import keyword
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from hyperparallel.cells.rewrite_expression import Expression, is_scalar, written_names
from hyperparallel.cells.rewrite_layers import is_users, takes_apart
from hyperparallel.cells.rewrite_names import Const, Frame, NotKnown, Ref, Var, is_plain
from hyperparallel.errors import ModelError

TURNS = 512
"""A `for` over more values than this stays a loop."""


@dataclass
class Step:
    """One statement of the straight-line code.

    Args:
        targets: names that it assigns.
        code: its source.
        frame, node: where the user wrote it.
        reads: names of earlier steps and inputs.
        held: names of the Cell's objects that it uses, see `Steps.held`.
        cells: the sub-Cells that it calls.
        scalar: sizes and plain numbers only, which need no rank to send them.
    """

    targets: tuple[str, ...]
    code: list[ast.stmt]
    frame: Frame
    node: ast.AST
    reads: frozenset[str]
    held: frozenset[str]
    cells: tuple[Ref, ...] = ()
    scalar: bool = False


class Steps:
    """Read a Cell's `construct` into steps.

    Args:
        cell: the whole model.
        columns: those arguments of `construct` that a batch has; each other one keeps its default.

    Raises:
        ModelError: source that cannot be taken; says file, line and why.
    """

    def __init__(self, cell: nn.Cell, columns: Sequence[str]):
        self.cell, self.inputs = cell, tuple(columns)
        self.steps: list[Step] = []
        self.values = set(columns)  # names of values of the running step
        self.scalars: set[str] = set()
        self.held: dict[str, Ref] = {}
        self.outer: dict[str, Any] = {}  # global names of the straight-line code
        self.failures: list[ModelError] = []  # why a sub-Cell was left whole
        self._counts: dict[str, int] = {}
        self.frame = Frame(Ref((), cell), type(cell).construct)
        self.last: ast.AST = self.frame.code  # the `return` that is reached
        for name, parameter in list(inspect.signature(self.frame.function).parameters.items())[1:]:
            self.frame.names[name] = Var(name) if name in columns else Const(parameter.default)
        self.returned = self._body(self.frame, self.frame.code.body)
        if self.returned is None:
            raise self.frame.refuse(self.frame.code, "construct returns nothing; it must return (loss, weight)")

    def fresh(self, name: str) -> str:
        """Make a name that nothing else in the straight-line code has."""
        while True:
            self._counts[name] = self._counts.get(name, 0) + 1
            made = f"{name}_{self._counts[name]}"
            if made not in self.values and made not in self.outer and not keyword.iskeyword(made):
                self.values.add(made)
                return made

    def hold(self, ref: Ref) -> ast.expr:
        """Give an object of the Cell a place in its piece, and return the expression for it."""
        name = "__".join(map(str, ref.path))
        while name in self.held and self.held[name].path != ref.path:
            name += "_"
        self.held[name] = ref
        return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())

    def global_(self, name: str, value: Any) -> ast.expr:
        """Give an object from outside the Cell a global name."""
        made = name
        while made in self.values or (made in self.outer and self.outer[made] is not value):
            made += "_"
        self.outer[made] = value
        return ast.Name(made, ast.Load())

    def emit(self, frame: Frame, node: ast.AST, names: Sequence[str], value: ast.expr, cells: Sequence[Ref]) -> list:
        """Add `names = value`; return the names that it really assigns."""
        made = [self.fresh(name) for name in names]
        targets = [ast.Name(name, ast.Store()) for name in made]
        target = targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
        scalar = is_scalar(value, self.scalars)
        self.scalars.update(made if scalar else ())
        self.add(frame, node, made, [ast.Assign([target], value)], cells, scalar)
        return made

    def add(
        self,
        frame: Frame,
        node: ast.AST,
        targets: Sequence[str],
        code: list[ast.stmt],
        cells: Sequence[Ref] = (),
        scalar: bool = False,
        at: int | None = None,
    ) -> Step:
        """Add a step, at the end or at a place; what it reads is found in its code."""
        reads, held = self._uses(code)
        step = Step(tuple(targets), code, frame, node, reads - set(targets), held, tuple(cells), scalar)
        self.steps.insert(len(self.steps) if at is None else at, step)
        return step

    def _uses(self, code: Collection[ast.AST]) -> tuple[frozenset[str], frozenset[str]]:
        nodes = [node for one in code for node in ast.walk(one)]
        reads = {node.id for node in nodes if isinstance(node, ast.Name) and node.id in self.values}
        held = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
        return frozenset(reads), frozenset(held & set(self.held))

    def value(self, frame: Frame, node: ast.expr, name: str) -> Ref | Const | Var:
        """Find what an expression stands for, adding a step for it where it must be computed."""
        ref = frame.resolve(node)
        if ref is not None and not is_plain(ref.value):
            return ref
        try:
            return Const(frame.known(node))
        except NotKnown:
            return self._computed(frame, node, self._expression(frame, node), name)

    def _computed(self, frame: Frame, node: ast.AST, made: tuple[ast.expr, list[Ref]], name: str) -> Var:
        expression, cells = made
        if isinstance(expression, ast.Name) and expression.id in self.values:
            return Var(expression.id)
        return Var(self.emit(frame, node, [name], expression, cells)[0])

    def _expression(self, frame: Frame, node: ast.expr) -> tuple[ast.expr, list[Ref]]:
        """Rewrite an expression whose outermost call needs no step of its own."""
        reader = Expression(self, frame)
        return reader.top(copy.deepcopy(node)), reader.cells

    def inline(self, frame: Frame, call: ast.Call, me: Ref, function: Any) -> ast.expr:
        """Take a method's body in place of a call to it; return what it returns."""
        parameters = inspect.signature(function).parameters
        named = {k.arg: k.value for k in call.keywords}
        starred = None in named or any(isinstance(one, ast.Starred) for one in call.args)
        if starred or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
            raise frame.refuse(call, f"{function.__qualname__} is called with, or takes, * or ** arguments")
        try:
            bound = inspect.signature(function).bind(None, *call.args, **named)
        except TypeError as error:
            raise frame.refuse(call, f"{function.__qualname__}: {error}") from None
        inner = Frame(me, function)
        for name, parameter in list(parameters.items())[1:]:
            given = name in bound.arguments
            inner.names[name] = self.value(frame, bound.arguments[name], name) if given else Const(parameter.default)
        returned = self._body(inner, inner.code.body)
        if returned is None:
            raise frame.refuse(call, f"{function.__qualname__} returns nothing")
        return returned

    def taken_apart(self, frame: Frame, call: ast.Call, ref: Ref) -> ast.expr | None:
        """Inline the `construct` of a sub-Cell that holds layers; None where it stays whole."""
        if not takes_apart(self.cell, ref):
            return None
        steps = len(self.steps)
        try:
            return self.inline(frame, call, ref, type(ref.value).construct)
        except ModelError as error:
            del self.steps[steps:]
            self.failures.append(error)
            return None

    def _body(self, frame: Frame, statements: Sequence[ast.stmt]) -> ast.expr | None:
        """Read statements up to a `return`; return its expression."""
        for statement in statements:
            returned = self._statement(frame, statement)
            if returned is not None:
                return returned
        return None

    def _statement(self, frame: Frame, node: ast.stmt) -> ast.expr | None:
        if isinstance(node, ast.Return) and node.value is not None:
            return self._return(frame, node)
        if isinstance(node, ast.If):
            return self._if(frame, node)
        if isinstance(node, ast.For) and not node.orelse:
            return self._for(frame, node)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            node = ast.copy_location(ast.Assign([node.target], node.value), node)
        if isinstance(node, ast.Assign):
            self._assign(frame, node)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
            self._assign(frame, ast.fix_missing_locations(ast.copy_location(ast.Assign([node.target], value), node)))
        elif isinstance(node, ast.While | ast.AugAssign):
            self._undecided(frame, node)
        elif not isinstance(node, ast.Pass) and not isinstance(getattr(node, "value", None), ast.Constant):
            raise frame.refuse(node, f"a statement of this kind ({type(node).__name__}) cannot be moved")
        return None

    def _return(self, frame: Frame, node: ast.Return) -> ast.expr:
        """Find what is returned; a Cell that computes the loss is taken apart, to see what it returns."""
        call = node.value
        if frame is self.frame:
            self.last = node
            ref = frame.resolve(call.func) if isinstance(call, ast.Call) else None
            if ref is not None and is_users(ref.value):
                return self.inline(frame, call, ref, type(ref.value).construct)
        if isinstance(call, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._returned(frame, one) for one in call.elts], ast.Load()), node)
        return self._returned(frame, call)

    def _returned(self, frame: Frame, node: ast.expr) -> ast.expr:
        expression, cells = self._expression(frame, node)
        if isinstance(expression, ast.Name | ast.Tuple) and not cells:
            return expression
        return ast.Name(self.emit(frame, node, ["result"], expression, cells)[0], ast.Load())

    def _assign(self, frame: Frame, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Subscript) for target in node.targets):
            self._undecided(frame, node)
            return
        for target in node.targets:
            if isinstance(target, ast.Name):
                frame.names[target.id] = self.value(frame, node.value, target.id)
            elif isinstance(target, ast.Tuple) and all(isinstance(one, ast.Name) for one in target.elts):
                self._unpack(frame, [one.id for one in target.elts], node.value)
            else:
                raise frame.refuse(node, "it assigns to something other than plain names")

    def _unpack(self, frame: Frame, names: list[str], node: ast.expr) -> None:
        if isinstance(node, ast.Tuple) and len(node.elts) == len(names):
            values = [self.value(frame, one, name) for one, name in zip(node.elts, names, strict=True)]
            frame.names.update(zip(names, values, strict=True))
            return
        expression, cells = self._expression(frame, node)
        if isinstance(expression, ast.Tuple) and len(expression.elts) == len(names):
            values = [
                self._computed(frame, node, (one, []), name) for one, name in zip(expression.elts, names, strict=True)
            ]
        else:
            values = [Var(name) for name in self.emit(frame, node, names, expression, cells)]
        frame.names.update(zip(names, values, strict=True))

    def _if(self, frame: Frame, node: ast.If) -> ast.expr | None:
        try:
            test = frame.known(node.test)
        except NotKnown:
            self._undecided(frame, node)
            return None
        return self._body(frame, node.body if test else node.orelse)

    def _for(self, frame: Frame, node: ast.For) -> ast.expr | None:
        turns = frame.items(node.iter)
        if turns is None or len(turns) > TURNS:
            self._undecided(frame, node)
            return None
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        if not all(isinstance(one, ast.Name) for one in targets) or any(len(turn) != len(targets) for turn in turns):
            raise frame.refuse(node, "the names of this loop do not match what it runs over")
        for turn in turns:
            frame.names.update(zip((one.id for one in targets), turn, strict=True))
            returned = self._body(frame, node.body)
            if returned is not None:
                return returned
        return None

    def _undecided(self, frame: Frame, node: ast.stmt) -> None:
        """Keep a statement whole whose course only a running step decides; it may not call what has parameters."""
        left = next((one for one in ast.walk(node) if isinstance(one, ast.Return)), None)
        if left is not None:
            raise frame.refuse(
                left, f"it returns from inside line {frame.place(node).split()[-1]}, decided by the batch"
            )
        written = sorted(set(written_names(node)))
        made = {name: self.fresh(name) for name in written}
        before = []
        for name in written:
            if name in frame.names:
                value = Expression(self, frame).top(ast.copy_location(ast.Name(name, ast.Load()), node))
                before.append(ast.Assign([ast.Name(made[name], ast.Store())], value))
        frame.names.update({name: Var(new) for name, new in made.items()})
        code = Expression(self, frame, undecided=node).visit(copy.deepcopy(node))
        self.add(frame, node, list(made.values()), [*before, code])
