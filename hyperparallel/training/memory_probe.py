"""Measure in the dry run what one layer keeps in memory, by compiling it alone for two and for three micro-batches.

Imported only by the process that is a rank of a dry run at level 1; `memory_profile.profile_of` starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.shapes import Columns, TensorSpec
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.transport import Transport
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.errors import DryRunError
from hyperparallel.training.build import build_layers, column_specs
from hyperparallel.training.config import load_config
from hyperparallel.training.memory_profile import measure


def measure_layer(
    layers: Sequence[Layer],
    index: int,
    carry: Sequence[TensorSpec],
    output: Sequence[TensorSpec],
    columns: Columns,
    *,
    backward: bool,
    sends_gradient: bool,
    dtype: str,
) -> LayerBytes:
    """Measure one layer.

    Args:
        layers: the whole model.
        index: which layer.
        carry: what it gets from the layer before it; empty for the first.
        output: what it hands on; of the last layer its packed losses.
        columns: of the batch.
        backward: whether a backward passes through it.
        sends_gradient: whether that backward returns the gradient of the carry.
        dtype: type it computes in.

    Raises:
        DryRunError: this is no dry run at level 1.

    Returns:
        Its bytes.
    """
    if os.environ.get("MS_SIMULATION_LEVEL") != "1":
        raise DryRunError("memory is measured in a dry run at level 1; start this process with run_ranks(level=1)")

    def peak(count: int) -> int:
        # A new slab each time: parameters that are on the device already would not raise the peak again.
        return _peak(build(), carry, output, columns, count)

    def build() -> Slab:
        slab = Slab(layers, (index, index + 1), 0, backward=backward, sends_gradient=sends_gradient, jit=False)
        slab.chain.carried = len(carry)
        if dtype != "float32":
            slab.compute_in(dtype)
        return slab

    slab = build()
    weights = sum(_bytes(parameter) for parameter in slab.chain.get_parameters())
    of_trained = [_bytes(parameter) for parameter in slab.weights] if backward else []
    trained, largest = sum(of_trained), max(of_trained, default=0)
    constants = _constants(slab.chain)
    given = sum(spec.bytes for spec in (*carry, *(columns[name] for name in slab.columns)))
    resident = weights + constants + given
    if not backward:
        return LayerBytes(weights, 0, 0, constants, 0, max(0, peak(0) - resident), 0)
    # From one micro-batch to two, the sum of weight gradients could be what is added.
    two, three = peak(2), peak(3)
    saved = max(0, three - two)
    scratch = two - 2 * saved - resident - sum(spec.bytes for spec in output)
    return LayerBytes(weights, trained, largest, constants, saved, 0, max(0, scratch))


def _peak(slab: Slab, carry: Sequence[TensorSpec], output: Sequence[TensorSpec], columns: Columns, count: int) -> int:
    """Run a probe; returns by how much the peak of the process rises."""
    probe = _Probe(slab, len(carry), count)
    probe.set_train(True)
    arguments = [_ones(spec) for spec in (*carry, *(columns[name] for name in slab.columns))]
    gradients = [_ones(spec) for spec in output] if count else []
    before = ms.runtime.memory_allocated()
    ms.runtime.reset_max_memory_allocated()
    probe(_ones(TensorSpec((1,))), tuple(gradients), *arguments)
    return ms.runtime.max_memory_allocated() - before


class _Probe(nn.Cell):
    """Run all forwards of a layer, then all backwards, gated like a rank's step."""

    def __init__(self, slab: Slab, carried: int, count: int) -> None:
        super().__init__(auto_prefix=False)
        self.stage, self.weights = slab.chain, ParameterTuple(slab.weights)
        self.carried, self.count = carried, count
        self.sends, self.trained = slab.sends_gradient, len(slab.weights) > 0
        self.depend, self.map = ops.Depend(), ops.HyperMap()
        self.differentiate = ops.GradOperation(get_all=self.sends, get_by_list=self.trained, sens_param=True)

    def construct(self, seed, gradients, *values):
        """Return what the last action made; `count` 0 runs one forward."""
        token, output = seed, seed
        kept = ()
        for _ in range(max(self.count, 1)):
            inputs = self.gated(seed, token, values)
            output = self.stage(*inputs)
            kept, token = kept + (inputs,), output  # noqa: RUF005 - the compiler takes no star here
        sums = ()
        for index in range(self.count):
            inputs, gradient = kept[index], self.start(gradients, token)
            of_inputs, of_weights = self.backward(inputs, gradient)
            if self.trained:
                sums = of_weights if index == 0 else self.map(ops.add, sums, of_weights)
            token = (of_inputs, sums)
        return token

    def gated(self, seed, token, values):
        """Make the inputs of one forward: its carry is an activation of its own, not an argument of the step."""
        if self.carried == 0:
            return (self.depend(values[0], token),) + values[1:]  # noqa: RUF005 - the compiler takes no star here
        carry = ()
        for index in range(self.carried):
            carry = carry + (self.depend(values[index] * self.depend(seed.astype(values[index].dtype), token), token),)
        return carry + values[self.carried :]

    def start(self, gradients, token):
        """Hold back the gradient of the output."""
        if len(gradients) == 1:
            return self.depend(gradients[0], token)
        held = ()
        for index in range(len(gradients)):
            held = held + (self.depend(gradients[index], token),)
        return held

    def backward(self, inputs, gradient):
        """Return the gradient of the carry and those of the weights."""
        if not self.trained:
            return self.differentiate(self.stage)(*inputs, gradient)[: self.carried], ()
        if not self.sends:
            return (), self.differentiate(self.stage, self.weights)(*inputs, gradient)
        both = self.differentiate(self.stage, self.weights)(*inputs, gradient)
        return both[0][: self.carried], both[1]


def _constants(cell: nn.Cell) -> int:
    """Count the tables and masks that a Cell and the Cells in it hold."""
    found = {
        id(value): _bytes(value)
        for _, one in cell.cells_and_names()
        for value in vars(one).values()
        if isinstance(value, Tensor) and not isinstance(value, Parameter)
    }
    return sum(found.values())


def _bytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.itemsize


def _ones(spec: TensorSpec) -> Tensor:
    kind = "float32" if spec.dtype == "bfloat16" else spec.dtype
    return Tensor(np.ones(spec.shape, kind), getattr(ms, spec.dtype))


def main(argv: Sequence[str]) -> None:
    """Measure the layers of a configuration.

    Args:
        argv: the file of profiles, the configuration, overrides.
    """
    file, path, *overrides = argv
    config = load_config(path, overrides)
    transport = Transport.simulate()
    layers = build_layers(config, transport.tensor_parallel(Topology(1, 1, config.parallel.tensor_parallel)))
    measure(layers, column_specs(config), Path(file), config.run.dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
