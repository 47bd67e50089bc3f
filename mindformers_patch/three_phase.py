"""A step in three phases, each its own graph: encoder, MindFormers' own graph of the LLM, encoder backward and update.

No bubble of the pipeline is filled: all workers encode before the pipeline starts, and wait for it before the encoder's
backward. It is for models that need MindFormers' own semi-automatic parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mindspore as ms
from mindspore import Parameter, nn

from mindformers_patch.three_phase_encoder import Encode, EncodeBack
from mindformers_patch.three_phase_llm import LlmPhase
from mindformers_patch.three_phase_update import Update


@contextmanager
def alone() -> Iterator[None]:
    """Compile and run graphs without MindSpore's automatic parallelism; what they exchange is written in them."""
    names = ("parallel_mode", "pipeline_stages")
    before = {name: ms.get_auto_parallel_context(name) for name in names}
    ms.set_auto_parallel_context(parallel_mode="stand_alone", pipeline_stages=1)
    try:
        yield
    finally:
        ms.set_auto_parallel_context(**before)


class Held(nn.Cell):
    """What a worker holds of a model: the network that MindFormers' optimizers, callbacks and checkpoints see.

    Args:
        whole: the model; in it are the layers of other workers' stages too.
        parameters: those of this worker, with their global names.
    """

    def __init__(self, whole: nn.Cell, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.whole = (whole,)  # in a tuple it is no child
        for parameter in parameters:
            self.insert_param_to_cell(parameter.name, parameter, check_name_contain_dot=False)

    def construct(self, *_):
        """Nothing: `ThreePhaseStep` runs the phases."""
        raise NotImplementedError("the phases of a step run by themselves")

    def get_gpt_transformer_config(self):
        """Return the configuration of MindFormers' layers."""
        return self.whole[0].get_gpt_transformer_config()

    def get_gpt_model(self):
        """Return the LLM."""
        return self.whole[0].get_gpt_model()


class ThreePhaseStep(nn.Cell):
    """A training step of a worker. It is a Cell for MindFormers' sake and no graph itself: its phases are.

    Args:
        encode: phase 1.
        llm: phase 2.
        back: phase 3; None for a frozen encoder.
        update: after them.
        names: columns of the batch in the order in which they come.
        network: what this worker holds, to save and to load.
    """

    def __init__(
        self,
        encode: Encode,
        llm: LlmPhase,
        back: EncodeBack | None,
        update: Update,
        names: Sequence[str],
        network: Held,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.scale_sense = network, update.optimizer, llm.scale
        # In a tuple they are no children, so parameters of other workers' stages are not saved from here.
        self.phases = (encode, llm, back, update)
        self.names = list(names)
        self.nothing = ms.Tensor([0.0], ms.float32)
        self.set_train(True)

    def set_train(self, mode: bool = True) -> ThreePhaseStep:
        """Set the phases to training, which is all they do."""
        super().set_train(mode)
        for phase in self.phases:
            if phase is not None:
                phase.set_train(mode)
        return self

    def __call__(self, *batch):
        """Run a step.

        Args:
            batch: columns of all M micro-batches of this replica, one below the other.

        Returns:
            Loss, overflow, loss scale, learning rate, global norm: as MindFormers' own wrappers.
        """
        encode, llm, back, update = self.phases
        ids, labels, pixels = self.columns(batch)
        with alone():
            placed = encode(ids, pixels)
        loss, norm, factor, gradient, of_llm = llm(ids, labels, *placed)
        with alone():
            square, of_encoder = (self.nothing, ()) if back is None else back(pixels, gradient, factor)
            return update(loss, norm, factor, square, *of_llm, *of_encoder)

    def columns(self, batch: Sequence[ms.Tensor]) -> list[ms.Tensor]:
        """Return token ids, labels and images."""
        return [batch[self.names.index(name)] for name in ("input_ids", "labels", "pixel_values")]

    def compile(self, *batch) -> None:
        """Compile all graphs for a batch, and run none."""
        encode, llm, back, update = self.phases
        ids, labels, pixels = self.columns(batch)
        features, rows, keep = feature_inputs(encode, ids, pixels)
        llm.compile(ids, labels, features, rows, keep)
        one = ms.Tensor([1.0], ms.float32)
        of_llm = () if llm.sums is not None else tuple(ms.Tensor(p.asnumpy()) for p in llm.weights)
        of_encoder = () if back is None else tuple(ms.Tensor(p.asnumpy()) for p in back.weights)
        with alone():
            encode.compile(ids, pixels)
            if back is not None:
                back.compile(pixels, features, one)
            update.compile(one, one, one, one, *of_llm, *of_encoder)


def feature_inputs(encode: Encode, ids: ms.Tensor, pixels: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor, ms.Tensor]:
    """Return zeros like the outputs of phase 1 for a batch."""
    rows, length = ids.shape
    width, dtype = encode.width, encode.dtype
    return (
        ms.ops.zeros((rows, 1 + pixels.shape[1] * encode.tokens, width), dtype),
        ms.ops.zeros((rows, length), ms.int32),
        ms.ops.zeros((rows, length, 1), ms.float32),
    )
