"""The grid that is compiled for Ascend: every skeleton, frozen and trained, and what can be switched on."""

from __future__ import annotations

from dataclasses import dataclass

from mindspore import nn, ops

from hyperparallel import Costs, Layer, Plan, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig, mllm
from hyperparallel.planner import Settings, plan_line

TOY_COLUMNS = {"image": TensorSpec((4, 16)), "text": TensorSpec((4, 16)), "answer": TensorSpec((4, 1))}
MLLM_COLUMNS = {
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
    "transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)",
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
    toy: bool = False  # two products a layer instead of a multimodal LLM
    dropout: float = 0.0
    skips: bool = False  # a step whose gradients are no finite numbers

    @property
    def columns(self) -> dict[str, TensorSpec]:
        """Shapes of a micro-batch."""
        return TOY_COLUMNS if self.toy else MLLM_COLUMNS

    @property
    def name(self) -> str:
        """File-name safe and unique."""
        size = self.topology
        text = f"{self.schedule}-{size.ranks}-{size.data_parallel}-{size.tensor_parallel}-{self.micro_batches}"
        text += f"-{self.vision}-{self.dtype}-{'+'.join(map(str, self.recompute))}"
        text += f"-dropout{self.dropout}" * (self.dropout > 0) + "-skips" * self.skips
        return "".join(character if character.isalnum() or character in "-+" else "_" for character in text)


GRID = [
    GridCase(schedule, Topology(ranks), micro_batches, toy=True)
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
    GridCase(
        "wave(vision+llm)", Topology(2), 2, dtype="float16"
    ),  # a slab ends with the embedding, whose table is wider
    GridCase(TRANSPOSE, Topology(2, 2, 2), 2),
    GridCase(TRANSPOSE, Topology(2), 4, dropout=0.1),
    GridCase(TRANSPOSE, Topology(2), 4, dropout=0.1, recompute=(0, 1, 3)),
    GridCase(TRANSPOSE, Topology(2), 4, dtype="float16", skips=True),
]


class Block(nn.Cell):
    """Two products and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(16, 32), nn.Dense(32, 16)

    def construct(self, x_BD):
        """Apply the block."""
        return x_BD + self.down(ops.relu(self.up(x_BD)))


class Merge(Block):
    """A block that adds the text first."""

    def construct(self, x_BD, text_BD):
        """Apply the block."""
        return super().construct(x_BD + text_BD)


class Head(nn.Cell):
    """Squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(16, 1)

    def construct(self, x_BD, answer_B1):
        """Return the loss and its weight."""
        error_B1 = self.dense(x_BD) - answer_B1
        return (error_B1 * error_B1).sum(), ops.ones_like(answer_B1).sum()


def toy_layers() -> tuple[Layer, ...]:
    """List 2 vision and 8 backbone layers: enough for two slabs on each of 4 ranks."""
    shape = [(4, 16)]
    return (
        Layer("vision.0", "vision", Block, columns=("image",), carry=lambda _: shape),
        Layer("vision.1", "vision", Block, carry=lambda _: shape),
        Layer("llm.merge", "llm", Merge, columns=("text",), carry=lambda _: shape),
        *(Layer(f"llm.{index}", "llm", Block, carry=lambda _: shape) for index in range(6)),
        Layer("llm.head", "llm", Head, columns=("answer",)),
    )


def layers_for(case: GridCase, parallel: TensorParallel | None = None) -> tuple[Layer, ...]:
    """List the layers of a case."""
    if case.toy:
        return toy_layers()
    return mllm(
        MllmConfig(
            vision=VisionConfig(width=16, depth=1, heads=2, ffn=32, trainable=case.vision, dropout=case.dropout),
            llm=DecoderConfig(
                vocab_size=16, width=24, depth=2, heads=4, kv_heads=2, ffn=32, max_length=32, dropout=case.dropout
            ),
            image_token=3,
        ),
        parallel or TensorParallel(case.topology.tensor_parallel),
    )


def plan_of(case: GridCase) -> Plan:
    """Derive the plan of a case; all stages cost the same."""
    spec, ranks = model_spec(layers_for(case)), case.topology.ranks
    return plan_line(case.schedule, spec, ranks, case.micro_batches, _costs, Settings(engine="list")).plan


def _costs(plan: Plan) -> Costs:
    split = plan.placement.split
    stages = range(plan.placement.stages)
    return Costs({(s, kind): 4.0 for s in stages for kind in "FB"}, shares=[(1 / split,) * split] * plan.micro_batches)
