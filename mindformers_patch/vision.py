"""Our vision encoder and projector as layers with parameter names `vision.*`, in the type that the job computes in.

Shapes: B texts of a micro-batch, I images of a text, N = B I, P patches of an image, D encoder width, Q tokens of an
image, H width of the LLM.
"""

from __future__ import annotations

from collections.abc import Mapping

import mindspore as ms
from mindspore import nn

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.tensor_parallel import WHOLE, TensorParallel
from hyperparallel.models import vit
from hyperparallel.models.config import VisionConfig
from mindformers_patch.named_layer import named_layer


class InType(nn.Cell):
    """Compute a Cell in a type; parameters stay float32.

    Args:
        cell: the Cell.
        dtype: of its operators and its output.
    """

    def __init__(self, cell: nn.Cell, dtype: ms.Type) -> None:
        super().__init__()
        self.cell, self.dtype = cell, dtype
        if dtype != ms.float32:
            cell.to_float(dtype)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Call the Cell."""
        return self.cell(x).astype(self.dtype)


def vision(config: VisionConfig, llm_width: int, dtype: ms.Type, parallel: TensorParallel = WHOLE) -> list[Layer]:
    """List the layers of the encoder.

    Args:
        config: sizes.
        llm_width: H.
        dtype: type of its operators.
        parallel: this worker's place among the T workers of its stage.

    Raises:
        ConfigError: T does not divide heads or ffn.

    Returns:
        Layers of the part `vision`, from `pixel_values` (B, I, channels, height, width) float32 to (N, Q, H).
    """
    parallel.check(**{"vision.heads": config.heads, "vision.ffn": config.ffn})
    name = str(dtype).lower()

    def patches(shapes: Mapping[str, tuple[int, ...]]) -> list[TensorSpec]:
        rows, images = shapes["pixel_values"][:2]
        return [TensorSpec((rows * images, config.patches, config.width), name)]

    def tokens(shapes: Mapping[str, tuple[int, ...]]) -> list[TensorSpec]:
        rows, images = shapes["pixel_values"][:2]
        return [TensorSpec((rows * images, config.tokens_per_image, llm_width), name)]

    def layer(title: str, make, **more) -> Layer:
        return named_layer(
            f"vision.{title}",
            lambda place: InType(make(place), dtype),
            strip="cell.",
            parallel=parallel,
            part="vision",
            **more,
        )

    shards = {f"cell.{local}": shard for local, shard in vit.block_shards(config).items()}
    return [
        layer("patch", lambda _: vit.PatchEmbed(config), columns=("pixel_values",), carry=patches),
        *(
            layer(f"blocks.{index}", lambda place: vit.VisionBlock(config, place), sharded=shards, carry=patches)
            for index in range(config.depth)
        ),
        layer("merger", lambda _: vit.Merger(config, llm_width), carry=tokens),
    ]
