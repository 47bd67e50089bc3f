"""The grid that is compiled for Ascend: every skeleton, frozen and trained, and what can be switched on."""

from __future__ import annotations

from dataclasses import dataclass

from hyperparallel import Plan, derive, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig, mllm

COLUMNS = {
    "pixel_values": TensorSpec((4, 1, 8, 8)),
    "input_ids": TensorSpec((2, 32), "int32"),
    "labels": TensorSpec((2, 32), "int32"),
}
SCHEDULES = (
    "1f1b(vision+llm)",
    "gpipe(vision+llm)",
    "wave(vision+llm)",
    "zb(vision+llm)",
    "1f1b(vision+llm)*2",
    "transpose(vision) >> 1f1b(llm)",
    "transpose(vision) >> zb(llm, fold=v)",
)


@dataclass(frozen=True)
class GridCase:
    """One job to compile."""

    schedule: str
    topology: Topology
    micro_batches: int
    vision: bool = True
    dtype: str = "float32"
    recompute: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """File-name safe and unique."""
        size = self.topology
        text = f"{self.schedule}-{size.ranks}-{size.data_parallel}-{size.tensor_parallel}-{self.micro_batches}"
        text += f"-{self.vision}-{self.dtype}-{'+'.join(map(str, self.recompute))}"
        return "".join(character if character.isalnum() or character in "-+" else "_" for character in text)


GRID = [
    GridCase(schedule, Topology(ranks), micro_batches)
    for ranks in (2, 4)
    for schedule in SCHEDULES
    for micro_batches in (ranks, 2 * ranks)
]
TRANSPOSE = "transpose(vision) >> 1f1b(llm)"
OTHERS = [
    GridCase(TRANSPOSE, Topology(2), 4, vision=False),
    GridCase(TRANSPOSE, Topology(2), 4, recompute=(0, 1, 3)),
    GridCase(TRANSPOSE, Topology(2), 4, dtype="bfloat16"),
    GridCase(TRANSPOSE, Topology(2), 4, dtype="float16"),
    GridCase(TRANSPOSE, Topology(2, 2, 2), 2),
]


def layers_for(case: GridCase, parallel: TensorParallel | None = None) -> tuple[Layer, ...]:
    """List 4 vision and 8 backbone layers: enough for two slabs on each of 4 ranks."""
    return mllm(
        MllmConfig(
            vision=VisionConfig(width=16, depth=2, heads=2, ffn=32, trainable=case.vision),
            llm=DecoderConfig(vocab_size=16, width=24, depth=6, heads=4, kv_heads=2, ffn=32, max_length=32),
            image_token=3,
        ),
        parallel or TensorParallel(case.topology.tensor_parallel),
    )


def plan_of(case: GridCase) -> Plan:
    """Derive the plan of a case."""
    return derive(case.schedule, model_spec(layers_for(case)), case.topology.ranks, case.micro_batches)
