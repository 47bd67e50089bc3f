"""A slab: the layers of one stage as one Cell, with a forward and a backward that reuses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from hyperparallel.algebra.program import Piece, Unit
from hyperparallel.cells.dropout import RANDOM
from hyperparallel.cells.layer import Layer, build_layer, layer_of
from hyperparallel.cells.pieces import piece_of
from hyperparallel.cells.step_result import check_carry
from hyperparallel.errors import DataError, ModelError

Carry = Tensor | tuple[Tensor, ...]
"""What one layer hands to the next."""


_FLOATS = (ms.float16, ms.bfloat16, ms.float32)


class _Chain(nn.Cell):
    """Call layers in sequence, each with the carry and its own columns.

    The last stage packs (loss, weight, *metrics) into one vector: a second output that the compiler folds to a
    constant is one object for all calls, and the second micro-batch in flight then fails to differentiate.
    """

    def __init__(self, cells: Sequence[nn.Cell], picks: Sequence[tuple[int, ...]], has_carry: bool, packs: bool):
        # Parameters have global names already; without auto_prefix=False they would be renamed by position.
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(cells, auto_prefix=False)
        self.picks = tuple(picks)
        self.carried = int(has_carry)  # how many of the inputs are the carry; a tuple sets it, see `Slab.inputs`
        self.packs = packs
        self.dtype = None  # type of what it hands on, where that is not left to the layers; see `Slab.compute_in`

    def construct(self, *inputs):
        carry = inputs[0] if self.carried == 1 else inputs[: self.carried]
        for index, cell in enumerate(self.layers):
            arguments = ()
            for column in self.picks[index]:
                arguments += (inputs[self.carried + column],)
            carry = cell(*arguments) if index == 0 and self.carried == 0 else cell(carry, *arguments)
        if self.packs:
            packed = ()
            for value in carry:
                packed += (value.astype(ms.float32).reshape(1),)
            carry = ops.concat(packed)
        elif self.dtype is not None:
            carry = self.cast(carry)
        return carry

    def cast(self, carry):
        """Give the floating-point tensors of a carry the declared type; whole numbers keep theirs."""
        if not isinstance(carry, tuple):
            return carry.astype(self.dtype)
        tensors = ()
        for tensor in carry:
            tensors += (tensor.astype(self.dtype) if tensor.dtype in _FLOATS else tensor,)
        return tensors


class _CompiledChain(_Chain):
    """The same as one compiled graph, for the shapes that `Signature` declares."""

    @ms.jit
    def construct(self, *inputs):
        return super().construct(*inputs)


class Signature:
    """Declare which axes of a Cell's inputs vary, so that one graph serves all shapes.

    Left to find out by itself (`jit(dynamic=1)`), MindSpore compiles the first three shapes it meets one by one
    before it compiles for any. Here all axes of a carry but the last (features), all of an integer column and the
    first of any other column vary from the start; an axis that turns out to vary too costs one more compilation.

    Args:
        cell: the compiled Cell.
    """

    def __init__(self, cell: _Chain):
        self._cell = cell
        self._shapes: list[list[int | None]] = []

    def admit(self, inputs: Sequence[Tensor]) -> None:
        """Make sure that the Cell takes these inputs; call before each forward."""
        if self._shapes and all(map(_fits, self._shapes, inputs)):
            return
        if not self._shapes:
            self._shapes = [_varying(tensor, index < self._cell.carried) for index, tensor in enumerate(inputs)]
        for shape, tensor in zip(self._shapes, inputs, strict=True):
            shape[:] = [size if size == now else None for size, now in zip(shape, tensor.shape, strict=True)]
        self._cell.set_inputs(
            *(Tensor(shape=shape, dtype=t.dtype) for shape, t in zip(self._shapes, inputs, strict=True))
        )


def _varying(tensor: Tensor, is_carry: bool) -> list[int | None]:
    """Guess which axes of an input vary from micro-batch to micro-batch."""
    shape: list[int | None] = list(tensor.shape)
    if is_carry:
        return [None] * (len(shape) - 1) + shape[-1:]
    if tensor.dtype in (ms.int32, ms.int64):
        return [None] * len(shape)
    return [None, *shape[1:]] if shape else shape


def _fits(shape: Sequence[int | None], tensor: Tensor) -> bool:
    return len(shape) == tensor.ndim and all(size in (None, now) for size, now in zip(shape, tensor.shape, strict=True))


class Slab:
    """The layers of one stage on this rank.

    Args:
        layers: all layers of the model.
        span: (first, one past the last) layer of this stage.
        seed: seed of the initial weights.
        backward: whether the stage has backwards; without, nothing is kept after a forward.
        sends_gradient: whether its backward must return the gradient of the carry.
        jit: compile forward and backward; False runs op by op.
        rank: of the pipeline; what each layer's Cell says in `pipeline_stage`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        span: tuple[int, int],
        seed: int,
        *,
        backward: bool,
        sends_gradient: bool,
        jit: bool,
        rank: int = 0,
    ):
        own = layers[span[0] : span[1]]
        self.names = [layer.name for layer in own]
        self.columns = tuple(dict.fromkeys(column for layer in own for column in layer.columns))
        self.first = own[0]
        self.is_last = span[1] == len(layers)
        self.has_carry = span[0] > 0
        picks = [tuple(self.columns.index(column) for column in layer.columns) for layer in own]
        cells = [build_layer(layer, seed) for layer in own]
        for layer, cell in zip(own, cells, strict=True):
            cell.pipeline_stage = rank
            _copy_tied(layer, cell, layers, seed)
        self.chain = (_CompiledChain if jit else _Chain)(cells, picks, self.has_carry, packs=self.is_last)
        self.signature = Signature(self.chain) if jit else None
        self.weights = ms.ParameterTuple([p for p in self.chain.get_parameters() if p.requires_grad])
        self.sends_gradient = sends_gradient
        self.trains = backward
        self._differentiate = None
        if backward:
            wants_weights = len(self.weights) > 0
            self._differentiate = ops.GradOperation(get_all=sends_gradient, get_by_list=wants_weights, sens_param=True)

    def compute_in(self, dtype: str) -> None:
        """Let the layers compute in another type than float32; parameters and losses stay float32.

        Args:
            dtype: "float16" or "bfloat16", which what the slab hands on then has too.
        """
        self.chain.dtype = getattr(ms, dtype)
        for layer in self.chain.layers:  # not the chain itself, which packs the losses
            layer.to_float(self.chain.dtype)

    def inputs(self, carry: Carry | None, micro_batch: Mapping[str, np.ndarray], mb: Unit, pieces: int = 1) -> tuple:
        """Collect the arguments of a forward: the carry, then the columns as Tensors.

        Args:
            carry: what the stage before handed on.
            micro_batch: its columns.
            mb: the micro-batch, or the piece of it, that is to run.
            pieces: number of pieces of a micro-batch.

        Raises:
            DataError: the micro-batch lacks a column that a layer here reads.
        """
        micro_batch = {RANDOM: np.zeros(2, np.int32), **micro_batch}  # where no runner gives a key, as in measurements
        for column in self.columns:
            if column not in micro_batch:
                raise DataError(
                    f"micro-batch {mb} has no column {column!r}, which {self.names[0]} .. {self.names[-1]} read; "
                    f"it has {', '.join(sorted(set(micro_batch) - {RANDOM})) or 'none'}"
                )
        arrays = [micro_batch[column] for column in self.columns]
        if isinstance(mb, Piece):
            rows = len(arrays[0])
            arrays = [
                piece_of(column, array, rows, mb.index, pieces)
                for column, array in zip(self.columns, arrays, strict=True)
            ]
        columns = tuple(map(Tensor, arrays))
        if not self.has_carry:
            return columns
        # Each tensor of a carry is an argument of its own: a tuple would be a constant to the compiler.
        carries = carry if isinstance(carry, tuple) else (carry,)
        self.chain.carried = len(carries)
        if self.first.check is not None:
            check_carry(self.first, [one.shape for one in carries], micro_batch, mb)
        return (*carries, *columns)

    def forward(self, inputs: tuple, train: bool, keep: bool = True) -> Carry:
        """Run the layers.

        Args:
            inputs: from `inputs`.
            train: whether this is a step of training; dropout needs to know.
            keep: whether a training step keeps what the backward needs, until `backward` gets the same inputs.
        """
        self.chain.set_train(train)
        self.chain.set_grad(train and keep and self.trains)
        if self.signature:
            self.signature.admit(inputs)
        return self.chain(*inputs)

    def backward(self, inputs: tuple, gradient: Carry) -> tuple[Carry | None, tuple[Tensor, ...]]:
        """Run the backward of an earlier `forward(inputs, train=True)`.

        Args:
            inputs: the very same tensor objects as in the forward, or it would be run again.
            gradient: of the stage's output.

        Returns:
            The gradient of the carry (None unless it is sent upstream) and those of `weights`.
        """
        weights = (self.weights,) if len(self.weights) else ()
        if not self.sends_gradient and not weights:
            return None, ()
        result = self._differentiate(self.chain, *weights)(*inputs, gradient)
        if not self.sends_gradient:
            return None, result
        of_inputs, of_weights = result if weights else (result, ())
        carried = self.chain.carried
        return of_inputs[0] if carried == 1 else of_inputs[:carried], of_weights

    @staticmethod
    def loss_gradient(packed: Tensor, scale: float = 1.0) -> Tensor:
        """Return the gradient that starts a backward at the packed loss: `scale` for it, 0 for weight and metrics."""
        return Tensor(np.float32(scale) * np.eye(1, packed.size, dtype=np.float32)[0])


def canonical_names(layers: Sequence[Layer]) -> dict[str, str]:
    """Map the global name of every tied parameter to the name of the parameter it is tied to."""
    return {layer.global_name(local): target for layer in layers for local, target in layer.tied.items()}


def _copy_tied(layer: Layer, cell: nn.Cell, layers: Sequence[Layer], seed: int) -> None:
    """Start tied parameters from the values of what they are tied to, drawn again here if it lives elsewhere."""
    own = dict(cell.parameters_and_names())
    for local, target in layer.tied.items():
        source_layer = layers[layer_of(target, layers)]
        source = {p.name: p for p in build_layer(source_layer, seed).get_parameters()}
        if local not in own or target not in source or own[local].shape != source[target].shape:
            raise ModelError(
                f"layer {layer.name!r} ties {local!r} to {target!r}; both must exist and have the same shape "
                f"(here: {', '.join(own)}; there: {', '.join(source)})"
            )
        if own[local].requires_grad != source[target].requires_grad:
            frozen = local if source[target].requires_grad else target
            raise ModelError(
                f"layer {layer.name!r} ties {local!r} to {target!r}, but the Cell that holds {frozen!r} freezes it; "
                "freeze both or neither, or the copies would not stay equal"
            )
        own[local].set_data(Tensor(source[target].asnumpy()))
