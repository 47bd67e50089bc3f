"""Sizes of the vision encoder, the decoder and the two together; every Cell takes its shapes from here."""

from __future__ import annotations

from pydantic import Field, model_validator

from hyperparallel.limits import (
    MAX_NUMBER,
    MAX_SIDE,
    MAX_TOKENS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Layers,
    Width,
    check_parameters,
)
from hyperparallel.schema import Items, Strict


class VisionConfig(Strict):
    """Sizes of the vision encoder: a ViT over square images, then a merger to the LLM's width."""

    image_size: int = Field(8, gt=0, le=MAX_SIDE, description="height and width of an image, pixels")
    channels: int = Field(1, gt=0, le=MAX_WIDTH, description="colour channels of an image")
    patch_size: int = Field(2, gt=0, le=MAX_SIDE, description="height and width of a patch, pixels")
    merge: int = Field(2, gt=0, le=MAX_SIDE, description="merge x merge neighbouring patches become one LLM token")
    width: Width = Field(description="features per patch")
    depth: Layers = Field(description="number of blocks")
    heads: Width = Field(description="attention heads; divides width, and width/heads is divisible by 4")
    ffn: Width = Field(description="features inside the block's MLP, usually 4 x width")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of what each branch of a block adds that is dropped")
    trainable: bool = Field(True, description="false freezes the encoder and its merger")

    @property
    def grid(self) -> int:
        """Patches along one side of an image."""
        return self.image_size // self.patch_size

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return self.grid**2

    @property
    def tokens_per_image(self) -> int:
        """LLM tokens of one image: the placeholders that the prompt needs for it."""
        return (self.grid // self.merge) ** 2

    @model_validator(mode="after")
    def _sizes_fit(self) -> VisionConfig:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}; "
                f"expected whole patches, e.g. image_size {_multiple(self.image_size, self.patch_size)}"
            )
        if self.grid % self.merge:
            raise ValueError(
                f"a side of {self.grid} patches (image_size {self.image_size} / patch_size {self.patch_size}) "
                f"is not a multiple of merge {self.merge}; expected whole groups, e.g. image_size "
                f"{_multiple(self.image_size, self.patch_size * self.merge)}"
            )
        if self.patches > MAX_TOKENS:
            raise ValueError(
                f"an image has {self.patches} patches; at most {MAX_TOKENS} are taken, so raise patch_size"
            )
        check_parameters(self.depth * self.width * (4 * self.width + 2 * self.ffn))
        # Rows turn one half of a head and columns the other; a rotary half is made of pairs.
        _check_heads(self.width, self.heads, 4, "2D rotary positions")
        return self


class DecoderConfig(Strict):
    """Sizes of the LLM: a decoder with grouped-query attention, rotary positions and SwiGLU."""

    vocab_size: int = Field(gt=0, le=MAX_VOCABULARY, description="token ids are 0 .. vocab_size - 1")
    width: Width = Field(description="features per token")
    depth: Layers = Field(description="number of blocks")
    heads: Width = Field(description="query heads; divides width, and width/heads is even")
    kv_heads: Width = Field(description="key and value heads; divides heads")
    ffn: Width = Field(description="features inside the block's SwiGLU")
    max_length: int = Field(gt=0, le=MAX_TOKENS, description="longest padded text, tokens, image placeholders included")
    rope_theta: float = Field(10000.0, gt=1, le=MAX_NUMBER, description="base of the rotary wavelengths")
    tied: bool = Field(True, description="true: the output projection is the embedding table")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of what each branch of a block adds that is dropped")
    trainable: bool = Field(True, description="false freezes the LLM")

    @model_validator(mode="after")
    def _sizes_fit(self) -> DecoderConfig:
        blocks = self.depth * self.width * (4 * self.width + 3 * self.ffn)
        check_parameters(blocks + (2 - self.tied) * self.vocab_size * self.width)
        _check_heads(self.width, self.heads, 2, "rotary positions")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; expected equal groups of "
                f"query heads, e.g. heads {_multiple(self.heads, self.kv_heads)}"
            )
        return self


class MllmConfig(Strict):
    """Sizes of a multimodal LLM; without `vision` it is a text-only LLM."""

    vision: VisionConfig | None = Field(None, description="the encoder; none: a text-only model")
    llm: DecoderConfig = Field(description="the backbone")
    image_token: int = Field(ge=0, lt=MAX_VOCABULARY, description="token id that stands for one row of image features")
    freeze: Items[str] = Field((), description="patterns of names of layers that are not trained: vision.blocks.*")

    @model_validator(mode="after")
    def _token_fits(self) -> MllmConfig:
        if self.image_token >= self.llm.vocab_size:
            raise ValueError(
                f"image_token {self.image_token} is outside the vocabulary; expected 0 .. "
                f"{self.llm.vocab_size - 1}, or llm.vocab_size of at least {self.image_token + 1}"
            )
        return self


def _check_heads(width: int, heads: int, unit: int, why: str) -> None:
    if width % heads:
        raise ValueError(
            f"width {width} is not a multiple of heads {heads}; expected equal heads, "
            f"e.g. width {_multiple(width, heads * unit)}"
        )
    if width // heads % unit:
        raise ValueError(
            f"a head of {width // heads} features (width {width} / heads {heads}) does not fit {why}; expected "
            f"a multiple of {unit}, e.g. width {_multiple(width, heads * unit)}"
        )


def _multiple(number: int, unit: int) -> int:
    """Round up to a multiple of `unit`."""
    return -(-number // unit) * unit
