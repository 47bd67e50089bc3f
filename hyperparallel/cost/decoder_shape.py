"""The shapes of decoders: grouped-query or latent attention, one SwiGLU or many experts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hyperparallel.cost.layer_shapes import Block, LayerShape, Spread, block_functions, block_layers
from hyperparallel.cost.roofline import Count, Sizes
from hyperparallel.limits import MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, Layers, Width
from hyperparallel.schema import Strict


def _rows(sizes: Sizes) -> float:
    return sizes["tokens"]


def _context(sizes: Sizes) -> float:
    """Return the tokens that a token looks at on average: half of a row, see `layer_shapes`."""
    return sizes["tokens"] / sizes.get("samples", 1) / 2


class Mla(Strict):
    """Multi-head latent attention: queries, keys and values are projected through narrow vectors."""

    q_rank: Width
    kv_rank: Width
    nope_dim: Width = Field(description="features of a head without position")
    rope_dim: Width = Field(description="features of a head with position; the keys share one")
    value_dim: Width = Field(description="features of a head's values")


class Decoder(Strict):
    """A decoder with grouped-query attention, or latent attention, and SwiGLU."""

    kind: Literal["decoder"]
    layers: Layers
    width: Width
    heads: Width
    kv_heads: Width
    head_dim: int | None = Field(None, gt=0, le=MAX_WIDTH, description="features of a head; default: width / heads")
    mla: Mla | None = None
    ffn: Width
    vocab_size: int = Field(gt=0, le=MAX_VOCABULARY)
    trainable: bool = True

    def shapes(self, part: str, spread: Spread) -> list[LayerShape]:
        """List the layers; embedding and head are two tables even where a model ties them: a pipeline has two."""
        blocks = [self._block(index, spread) for index in range(self.layers)]
        functions = {block: block_functions(block, _rows, _context) for block in blocks}
        pairs = [(block, functions[block]) for block in blocks]
        shapes = block_layers(part, self.trainable, pairs, self._handed)
        return [self._embed(part), *shapes, self._head(part)]

    def _handed(self, sizes: Sizes) -> float:
        return sizes["tokens"] * self.width

    def _embed(self, part: str) -> LayerShape:
        table = self.vocab_size * self.width
        return LayerShape(
            f"{part}.embed",
            part,
            self.trainable,
            parameters=table,
            largest=table,
            count=lambda sizes: Count(self._handed(sizes), 0.0, 2 * self._handed(sizes)),
            saved=lambda sizes: 0.0,
            scratch=self._handed,
            carry=self._handed,
        )

    def _head(self, part: str) -> LayerShape:
        table, vocabulary = self.vocab_size * self.width, self.vocab_size
        # Logits and their softmax are float32: of what is kept, each is two elements of the usual two bytes.
        moved, scores, kept = 2 * self.width, 4 * vocabulary, 2 * self.width + 2 * vocabulary
        return LayerShape(
            f"{part}.head",
            part,
            self.trainable,
            parameters=table,
            largest=table,
            count=lambda sizes: Count(
                2 * sizes["tokens"] * table, table, sizes["tokens"] * moved, float32=sizes["tokens"] * scores
            ),
            saved=lambda sizes: sizes["tokens"] * kept,
            scratch=lambda sizes: sizes["tokens"] * 2 * vocabulary,
            carry=lambda sizes: 0.0,
        )

    def _attention(self) -> tuple[float, float, float]:
        """Return parameters, multiply-adds of a pair of tokens, and elements of queries, keys, values and result."""
        width, heads = self.width, self.heads
        if self.mla is None:
            head = self.head_dim or width // heads
            return 2 * width * head * (heads + self.kv_heads), 2 * heads * head, 2 * head * (heads + self.kv_heads)
        mla = self.mla
        key = mla.nope_dim + mla.rope_dim
        down = width * (mla.q_rank + mla.kv_rank + mla.rope_dim)
        up = heads * (mla.q_rank * key + mla.kv_rank * (mla.nope_dim + mla.value_dim))
        return (
            down + up + heads * mla.value_dim * width,
            heads * (key + mla.value_dim),
            2 * heads * (key + mla.value_dim),
        )

    def _feed_forward(self, index: int, spread: Spread) -> tuple[float, float, float, float]:
        """Return parameters, those that a token multiplies, the largest, and elements between its operators."""
        parameters = 3 * self.width * self.ffn / spread.tensor
        return parameters, parameters, self.width * self.ffn / spread.tensor, 3 * self.ffn / spread.tensor

    def _block(self, index: int, spread: Spread) -> Block:
        attention, mixing, heads = (one / spread.tensor for one in self._attention())
        parameters, active, largest, inner = self._feed_forward(index, spread)
        return Block(
            attention + parameters,
            largest,
            attention + active,
            mixing,
            # Norms, sums and projections back to the width; queries, keys, values, rotated ones, what is mixed; the
            # SwiGLU's or the experts'.
            tensors=6 * self.width + 1.5 * heads + inner,
            saved=4 * self.width + heads + inner,
            scratch=self.width + 2 * inner,
        )


class MoeDecoder(Decoder):
    """A decoder whose blocks choose a few of many experts for each token; the choice is taken to be even.

    The exchange of tokens among devices that share the experts is not priced.
    """

    kind: Literal["moe_decoder"]
    experts: Width = Field(description="routed experts of a block")
    experts_per_token: Width
    shared_experts: int = Field(0, ge=0, le=MAX_WIDTH, description="experts that see every token")
    expert_ffn: Width = Field(description="inner features of one expert")
    dense_layers: int = Field(
        0, ge=0, le=MAX_LAYERS, description="first blocks, which have one SwiGLU of `ffn` instead"
    )

    def _feed_forward(self, index: int, spread: Spread) -> tuple[float, float, float, float]:
        if index < self.dense_layers:
            return super()._feed_forward(index, spread)
        expert = 3 * self.width * self.expert_ffn / spread.tensor
        router, used = self.width * self.experts, self.experts_per_token + self.shared_experts
        held = self.experts / spread.experts
        inner = used * 3 * self.expert_ffn / spread.tensor + 2 * self.experts_per_token * self.width
        # The experts' matrices of one kind are one parameter.
        return expert * (held + self.shared_experts) + router, expert * used + router, expert / 3 * held, inner
