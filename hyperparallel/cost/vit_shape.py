"""The shape of a vision transformer with a merger to LLM tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hyperparallel.cost.layer_shapes import Block, LayerShape, Spread, block_functions, block_layers
from hyperparallel.cost.roofline import Count, Sizes
from hyperparallel.limits import MAX_LAYERS, MAX_SIDE, Layers, Width
from hyperparallel.schema import Items, Strict

_Block = Annotated[int, Field(ge=0, lt=MAX_LAYERS)]


class Vit(Strict):
    """A vision transformer over still images, with a merger of merge x merge patches to one LLM token."""

    kind: Literal["vit"]
    layers: Layers
    width: Width
    heads: Width
    ffn: Width = Field(description="inner features of the MLP")
    gated: bool = Field(False, description="the MLP has a gate: three matrices instead of two")
    patch_size: int = Field(gt=0, le=MAX_SIDE, description="pixels")
    channels: Width = 3
    frames: Width = Field(1, description="frames of a patch; a still image is repeated")
    merge: int = Field(2, gt=0, le=MAX_SIDE)
    output: Width = Field(description="width of the merged tokens, that of the LLM")
    image_size: int = Field(gt=0, le=MAX_SIDE, description="height and width of an image, pixels")
    window: int | None = Field(
        None, gt=0, le=MAX_SIDE, description="pixels; attention stays inside windows of this size"
    )
    full_attention: Items[_Block] = Field((), description="blocks that attend to the whole image all the same")
    trainable: bool = True

    @model_validator(mode="after")
    def _fits(self) -> Vit:
        unit = self.patch_size * self.merge
        if self.image_size % unit:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size x merge = {unit}")
        if self.window is not None and self.window < self.patch_size:
            raise ValueError(f"window {self.window} is smaller than patch_size {self.patch_size}; give pixels")
        wrong = [block for block in self.full_attention if block >= self.layers]
        if wrong:
            raise ValueError(f"full_attention names block {wrong[0]}; the blocks are 0 .. {self.layers - 1}")
        return self

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens_per_image(self) -> int:
        """LLM tokens of an image."""
        return self.patches // self.merge**2

    def shapes(self, part: str, spread: Spread) -> list[LayerShape]:
        """List the layers: patch, blocks, merger."""
        block = self._block(spread.tensor)
        sees = {full: self.patches if full else self._in_window for full in (False, True)}
        functions = {full: block_functions(block, self._rows, lambda _, n=number: n) for full, number in sees.items()}
        full = [self.window is None or index in self.full_attention for index in range(self.layers)]
        blocks = block_layers(part, self.trainable, [(block, functions[one]) for one in full], self._handed)
        return [self._patch(part), *blocks, self._merger(part)]

    def _rows(self, sizes: Sizes) -> float:
        return sizes["images"] * self.patches

    def _handed(self, sizes: Sizes) -> float:
        return self._rows(sizes) * self.width

    @property
    def _in_window(self) -> int:
        return (self.window // self.patch_size) ** 2 if self.window else self.patches

    def _patch(self, part: str) -> LayerShape:
        inputs = self.channels * self.frames * self.patch_size**2
        matrix, moved = inputs * self.width, inputs + self.width
        return LayerShape(
            f"{part}.patch",
            part,
            self.trainable,
            parameters=matrix,
            largest=matrix,
            count=lambda sizes: Count(2 * self._rows(sizes) * matrix, matrix, self._rows(sizes) * moved),
            saved=lambda sizes: self._rows(sizes) * inputs,
            scratch=self._handed,
            carry=self._handed,
        )

    def _block(self, tensor: int) -> Block:
        width, matrices = self.width, 3 if self.gated else 2
        parameters = width * (4 * width + matrices * self.ffn) / tensor
        inner = matrices * self.ffn / tensor
        return Block(
            parameters,
            largest=width * max(3 * width, self.ffn) / tensor,
            active=parameters,
            mixing=2 * width / tensor,
            # Norms, sums and projections back to the width; queries, keys, values and what is mixed; the MLP's.
            tensors=6 * width + 4 * width / tensor + inner,
            saved=4 * width + 4 * width / tensor + inner,
            scratch=width + 2 * inner,
        )

    def _merger(self, part: str) -> LayerShape:
        grouped = self.merge**2 * self.width
        matrices, moved = grouped * (grouped + self.output), 2 * (3 * grouped + self.output)

        def rows(sizes: Sizes) -> float:
            return sizes["images"] * self.tokens_per_image

        return LayerShape(
            f"{part}.merger",
            part,
            self.trainable,
            parameters=matrices,
            largest=max(grouped, self.output) * grouped,
            count=lambda sizes: Count(2 * rows(sizes) * matrices, matrices, rows(sizes) * moved),
            saved=lambda sizes: 4 * rows(sizes) * grouped,
            scratch=lambda sizes: 2 * rows(sizes) * grouped,
            carry=lambda sizes: rows(sizes) * self.output,
        )
