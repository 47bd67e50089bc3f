"""The transpose pass: from a user's own multimodal Cell to the layer list that a schedule can place.

It reads the Cell's source with `ast`, not with `mindspore.rewrite`: SymbolTree has no data flow through methods of
tensors (`image.mean(0)` has no inputs, and `image` no users), takes no `construct` that is inherited, evaluates both
sides of `or`, and copies the source of every MindSpore function that is called into the result.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from mindspore import nn
from mindspore.nn.utils import no_init_parameters

from hyperparallel.cells.layer import Layer, seeded
from hyperparallel.cells.rewrite_cut import Piece, cut
from hyperparallel.cells.rewrite_layers import at
from hyperparallel.cells.rewrite_steps import Steps
from hyperparallel.cells.source_file import import_source
from hyperparallel.errors import ModelError


def transpose_pass(
    build: Callable[[], nn.Cell],
    columns: Sequence[str] | Mapping[str, str] | None = None,
    *,
    modality: Sequence[str] | None = None,
    parts: tuple[str, str] = ("vision", "llm"),
    frozen: Sequence[str] = (),
    metrics: Sequence[str] = (),
    folder: str | Path | None = None,
) -> list[Layer]:
    """Take a multimodal Cell apart into layers, with the names of its parameters unchanged.

    The encoder is the maximal sub-graph of `construct` that depends on the modality inputs and on no other input. It
    becomes the first part; the rest becomes the second, cut at the decoder's layers: an `nn.CellList`, an
    `nn.SequentialCell` of one class, or `self.layer0`, `self.layer1`, ... Sub-Cells that hold layers are taken apart
    too. A value that later layers use again, such as a mask, is carried along.

    Args:
        build: makes the Cell: its class, or a function without arguments. Called once for each layer, with
            parameters that get their values only where a rank owns them.
        columns: arguments of `construct` that are batch columns, or a mapping of argument to column; default: those
            without a default value. The others keep their default.
        modality: arguments that feed the encoder. Default: those that reach a sub-Cell with parameters before they
            meet text; text is what goes directly into an `nn.Embedding`.
        parts: names of the encoder's and the decoder's part in schedule lines.
        frozen: names of parts that are not trained. A parameter with `requires_grad=False` is not trained anyhow.
        metrics: names of what `construct` returns behind loss and weight.
        folder: where the source of the layers is written; default: a folder that is removed when Python ends.

    Raises:
        ModelError: source that cannot be taken, with file, line and reason; or arguments that do not fit.

    Returns:
        The layers, for `model_spec` and `Runner`.

    Example:
        `MyModel` is a Cell in a file, whose `construct(self, pixels, ids, labels)` returns `(loss, weight)`:

            layers = transpose_pass(MyModel)
            plan = derive("transpose(vision) >> 1f1b(llm)", model_spec(layers), ranks=4, micro_batches=8)
    """
    with seeded(0, "transpose_pass"), no_init_parameters():
        cell = build()
    names = _columns(cell, columns)
    unknown = [name for name in modality or () if name not in names]
    if unknown or (modality is not None and not modality):
        raise ModelError(f"modality={tuple(modality)}; expected one or more of the inputs {', '.join(names)}")
    if set(frozen) - set(parts):
        raise ModelError(f"frozen={tuple(frozen)}; expected names of the parts {parts}")
    steps = Steps(cell, tuple(names))
    _check_returned(steps, metrics)
    pieces = cut(steps, modality, parts)
    stem = f"{type(cell).__name__.lower()}_layers"
    # The user's source keeps what its global names mean.
    module = import_source(_source(steps, pieces), stem, folder, steps.outer)
    return _layers(build, cell, steps, pieces, module, names, frozen, tuple(metrics))


def _columns(cell: nn.Cell, columns: Sequence[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Map arguments of construct to batch columns, in the order of the arguments."""
    arguments = list(inspect.signature(inspect.unwrap(type(cell).construct)).parameters.values())[1:]
    odd = [str(one) for one in arguments if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if odd:
        raise ModelError(f"{type(cell).__name__}.construct takes {', '.join(odd)}; give each input a name")
    if columns is None:
        columns = [one.name for one in arguments if one.default is one.empty]
    given = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    needed = {one.name for one in arguments if one.default is one.empty}
    if set(given) - {one.name for one in arguments} or needed - set(given):
        raise ModelError(
            f"columns={', '.join(given)}; {type(cell).__name__}.construct takes "
            f"{', '.join(one.name for one in arguments)} and needs {', '.join(sorted(needed))}"
        )
    return {one.name: given[one.name] for one in arguments if one.name in given}


def _check_returned(steps: Steps, metrics: Sequence[str]) -> None:
    """Refuse a result that is not (loss, weight, *metrics)."""
    contract = (
        "construct must return (loss, weight, *metrics): the *sum* of the loss over the micro-batch, the number of its "
        "terms, and a sum for each name in metrics="
    )
    result = steps.returned
    if not isinstance(result, ast.Tuple):
        raise steps.frame.refuse(steps.last, contract)
    if len(result.elts) != 2 + len(metrics):
        why = f"it returns {len(result.elts)} values with {len(metrics)} metrics named; {contract}"
        raise steps.frame.refuse(steps.last, why)
    if any(isinstance(one, ast.Constant) or getattr(one, "id", None) in steps.scalars for one in result.elts):
        why = "a plain number is returned where a Tensor is expected, such as ops.ones_like(labels).sum()"
        raise steps.frame.refuse(steps.last, why)


def _source(steps: Steps, pieces: Sequence[Piece]) -> str:
    lines = [f'"""Layers of {type(steps.cell).__name__}, written by transpose_pass; global names are set by it."""']
    lines += ["from mindspore.nn import Cell as Cell__"]
    for index, piece in enumerate(pieces):
        carry = ["carry__"] if index else []
        lines += ["", "", f"class Layer{index}__(Cell__):", f'    """{piece.name}"""', ""]
        lines += [f"    def construct({', '.join(['self', *carry, *piece.columns])}):"]
        if index:
            lines += [f"        {', '.join(piece.takes)} = carry__"]
        for step in piece.steps:
            for code in step.code:
                lines += [f"        {line}" for line in ast.unparse(ast.fix_missing_locations(code)).splitlines()]
        gives = ", ".join(piece.gives) if index < len(pieces) - 1 else ast.unparse(steps.returned)
        lines += [f"        return {gives}"]
    return "\n".join(lines) + "\n"


def _build_piece(build: Callable[[], nn.Cell], kind: type[nn.Cell], held: Mapping[str, tuple]) -> nn.Cell:
    """Build the whole Cell without values and keep what one layer needs; the layer's owner then draws the values."""
    with no_init_parameters():
        cell = build()
    return _assemble(cell, kind, held)


def _assemble(cell: nn.Cell, kind: type[nn.Cell], held: Mapping[str, tuple]) -> nn.Cell:
    piece = kind(auto_prefix=False)  # or parameters would get names by the piece
    for name, path in held.items():
        setattr(piece, name, at(cell, path))
    return piece


def _layers(
    build: Callable[[], nn.Cell],
    cell: nn.Cell,
    steps: Steps,
    pieces: Sequence[Piece],
    module: ModuleType,
    columns: Mapping[str, str],
    frozen: Sequence[str],
    metrics: tuple[str, ...],
) -> list[Layer]:
    """Declare the pieces; a parameter that two of them use belongs to the first and is tied by the second."""
    owners: set[str] = set()
    layers, trains, given = [], [], []
    for index, piece in enumerate(pieces):
        names = sorted(set().union(*(step.held for step in piece.steps)))
        held = {name: steps.held[name].path for name in names}
        kind = getattr(module, f"Layer{index}__")
        parameters, tied, still = {}, {}, []
        for local, parameter in _assemble(cell, kind, held).parameters_and_names():
            if not parameter.requires_grad:
                still.append(local)
            if parameter.name in owners:
                parameters[local], tied[local] = f"{piece.name}.{local}", parameter.name
            else:
                parameters[local] = parameter.name
        owners |= set(parameters.values())
        trains.append(len(still) < len(parameters) if parameters else None)
        given.append((piece, partial(_build_piece, build, kind, held), parameters, tied, tuple(still)))
    for index, (piece, make, parameters, tied, still) in enumerate(given):
        # A layer without parameters is trained where its part is, so that it alone asks for no gradient.
        of_part = any(one for one, other in zip(trains, pieces, strict=True) if other.part == piece.part)
        trainable = piece.part not in frozen and (of_part if trains[index] is None else trains[index])
        layers.append(
            Layer(
                piece.name,
                piece.part,
                make,
                columns=tuple(columns[name] for name in piece.columns),
                trainable=trainable,
                tied=tied,
                metrics=metrics if index == len(given) - 1 else (),
                parameters=parameters,
                frozen=still,
            )
        )
    return layers
