"""Multimodal Cells as their authors might write them, and batches for them.

B samples, T tokens, N images per sample, W width. Every Cell returns (summed loss, number of tokens).
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

VOCABULARY, WIDTH, PATCH = 20, 8, 12
IGNORED = -100


class Block(nn.Cell):
    """A residual block, for encoder and decoder alike."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm = nn.LayerNorm((width,))
        self.fc = nn.Dense(width, width, activation="tanh")

    def construct(self, h, mask=None, shift=None):
        x = self.fc(self.norm(h))
        if shift is not None:
            x = x + shift
        if mask is not None:
            x = x * mask
        return h + x


class Tower(nn.Cell):
    """An encoder with a list of blocks: (B, N, PATCH) -> (B, N, width)."""

    def __init__(self, width=WIDTH, depth=2):
        super().__init__()
        self.patch = nn.Dense(PATCH, width)
        self.blocks = nn.CellList([Block(width) for _ in range(depth)])

    def construct(self, pixels):
        h = self.patch(pixels)
        for block in self.blocks:
            h = block(h)
        return h


def summed_loss(logits_BTV, labels_BT):
    """Sum the cross entropy of all tokens that have a label."""
    flat = labels_BT.reshape(-1)
    return ops.cross_entropy(logits_BTV.reshape(-1, VOCABULARY), flat, ignore_index=IGNORED, reduction="sum")


class Inside(nn.Cell):
    """The projector is inside the encoder; a loop with keyword arguments; free parameters of the top Cell."""

    def __init__(self, depth=2):
        super().__init__()
        self.vision = nn.SequentialCell(Tower(), nn.Dense(WIDTH, WIDTH))
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.scale = ms.Parameter(ms.Tensor(np.linspace(0.5, 1.5, WIDTH).astype(np.float32)))
        self.layers = nn.CellList([Block() for _ in range(depth)])
        self.norm = nn.LayerNorm((WIDTH,))
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)
        self.depth = depth

    def construct(self, pixels, ids, labels, extra=None):
        """Return the loss."""
        image = self.vision(pixels)
        h = self.embed(ids) * self.scale
        B, T = ids.shape
        mask = (ids != 0).astype(ms.float32).reshape(B, T, 1)
        h += image.mean(axis=1, keep_dims=True)
        if extra is not None:
            h = h + extra
        for layer in self.layers:
            h = layer(h, mask=mask)
        logits = self.head(self.norm(h)).reshape(B * T, VOCABULARY)
        return summed_loss(logits, labels), (labels != IGNORED).astype(ms.float32).sum()


class Decoder(nn.Cell):
    """A decoder as a Cell of its own, its layers numbered attributes."""

    def __init__(self):
        super().__init__()
        self.layer0, self.layer1, self.layer2 = Block(), Block(), Block()
        self.norm = nn.LayerNorm((WIDTH,))

    def construct(self, embeds, shift):
        h = self.layer1(self.layer0(embeds, shift=shift), shift=shift)
        return self.norm(self.layer2(h, None, shift))


class Outside(nn.Cell):
    """Two encoders, the projectors outside them, in one expression with the text; a tied head; a merging method."""

    def __init__(self):
        super().__init__()
        self.vision, self.audio = Tower(4), Tower(6, depth=1)
        self.see, self.hear = nn.Dense(4, WIDTH), nn.Dense(6, WIDTH)
        self.llm = Decoder()
        self.table = ms.Parameter(ms.Tensor(np.random.normal(0, 0.3, (VOCABULARY, WIDTH)).astype(np.float32)))
        self.weights = (0.5, 2.0)

    def merge(self, text, image, sound=None):
        """Add what is seen and heard, averaged, to every token."""
        if sound is None:
            return text + image
        return text + self.weights[0] * image + self.weights[1] * sound

    def construct(self, ids, pixels, sound, labels):
        text = ops.gather(self.table, ids, 0)
        h = self.merge(
            text, self.see(self.vision(pixels)).mean(1, True), sound=self.hear(self.audio(sound)).mean(1, True)
        )
        h = self.llm(h, shift=text.mean(axis=1, keep_dims=True))
        logits = ops.matmul(h, self.table.T)
        loss = summed_loss(logits, labels)
        return loss, (labels != IGNORED).astype(ms.float32).sum()


class Deep(nn.Cell):
    """The encoder's outputs are used at the embedding and again behind decoder layers, as in DeepStack."""

    def __init__(self):
        super().__init__()
        self.vision = Tower()
        self.first, self.second = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.CellList([Block() for _ in range(3)])
        self.head = nn.Dense(WIDTH, VOCABULARY)
        self.stacked = (0, 1)
        self.dropout = nn.Dropout(p=0.0)

    def encode(self, pixels):
        """Return what is merged, and what is added later."""
        features = self.vision(pixels)
        return self.first(features).mean(axis=1, keep_dims=True), self.second(features)

    def construct(self, pixels, ids, labels):
        image, deep = self.encode(pixels)
        h = self.dropout(self.embed(ids)) + image
        for i, block in enumerate(self.blocks):
            h = block(h)
            if i in self.stacked:
                h = h + deep.mean(axis=1, keep_dims=True) * (i + 1)
        if self.training:
            h = h * 1.5
        return summed_loss(self.head(h), labels), (labels != IGNORED).astype(ms.float32).sum()


class Model(nn.Cell):
    """A decoder with its embedding, layers called by index."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.CellList([Block() for _ in range(2)])

    def construct(self, h, attention_mask=None):
        for i in range(len(self.layers)):
            h = self.layers[i](h, attention_mask)
        return h


class Loss(nn.Cell):
    """Loss and weight."""

    def construct(self, logits, labels):
        return summed_loss(logits, labels), ops.ones_like(labels).sum()


class Nested(nn.Cell):
    """Optional inputs, a decoder that holds its embedding, an assignment to a slice, a Cell for the loss."""

    def __init__(self):
        super().__init__()
        self.model, self.visual, self.lm_head, self.loss = Model(), Tower(), nn.Dense(WIDTH, VOCABULARY), Loss()

    def construct(self, pixels, ids, labels=None, attention_mask=None):
        h = self.model.embed_tokens(ids)
        if pixels is not None:
            h = ops.where((ids == 3).expand_dims(-1), self.visual(pixels).mean(1, True).astype(h.dtype), h)
        logits = self.lm_head(self.model(h, attention_mask=attention_mask))
        logits[:, 0] = 0.0
        if labels is None:
            return logits
        return self.loss(logits, labels)


class Ambiguous(Inside):
    """Text goes through a Cell of the user's, so nothing tells it from images."""

    def __init__(self):
        super().__init__()
        self.words = Words()

    def construct(self, pixels, ids, labels):
        h = self.words(ids) + self.vision(pixels).mean(1, True)
        for layer in self.layers:
            h = layer(h)
        return summed_loss(self.head(h), labels), ops.ones_like(h).sum()


class Words(nn.Cell):
    """A text embedding with a scale."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def construct(self, ids):
        return self.table(ids) * 2.0


class FedByText(Inside):
    """Every Cell that sees the images sees the text too."""

    def construct(self, pixels, ids, labels):
        h = self.embed(ids)
        image = self.vision(pixels + h.mean())  # refused
        for layer in self.layers:
            h = layer(h + image.mean(1, True))
        return summed_loss(self.head(h), labels), ops.ones_like(h).sum()


class Undecided(Inside):
    """The encoder runs only if the batch says so."""

    def construct(self, pixels, ids, labels):
        h = self.embed(ids)
        if pixels.sum() > 0:
            h = h + self.vision(pixels).mean(1, True)  # refused
        for layer in self.layers:
            h = layer(h)
        return summed_loss(self.head(h), labels), ops.ones_like(h).sum()


class NoLayers(Inside):
    """The decoder has no layers."""

    def construct(self, pixels, ids, labels):  # refused
        h = self.norm(self.embed(ids) + self.vision(pixels).mean(1, True))
        return summed_loss(self.head(h), labels), ops.ones_like(h).sum()


class OneValue(Inside):
    """It returns the mean loss alone."""

    def construct(self, pixels, ids, labels):
        h = self.layers[0](self.embed(ids) + self.vision(pixels).mean(1, True))
        return summed_loss(self.head(h), labels) / 2.0  # refused


class Stored(Inside):
    """A value is hidden in an attribute."""

    def construct(self, pixels, ids, labels):
        self.image = self.vision(pixels)  # refused
        return self.image, labels


class Collected(Inside):
    """Values are hidden in a list."""

    def construct(self, pixels, ids, labels):
        seen = []
        for layer in self.layers:
            seen.append(layer(self.embed(ids)))  # refused
        return seen[0], labels


class Bundled(Inside):
    """A tuple of tensors would have to travel from layer to layer."""

    def construct(self, pixels, ids, labels):
        image = self.vision(pixels).mean(1, True)
        h = self.embed(ids)
        both = (h, h + 1)  # refused
        for layer in self.layers:
            h = layer(h) + image
        return summed_loss(self.head(h + both[1]), labels), ops.ones_like(h).sum()


def batch_of(step: int, micro_batches=3, size=3) -> list[dict[str, np.ndarray]]:
    """Draw micro-batches of one shape, since the Cell as it is compiles anew for each; labels differ in number."""
    rng = np.random.default_rng(step)
    batch = []
    for _ in range(micro_batches):
        ids = rng.integers(0, VOCABULARY, (size, 5)).astype(np.int32)
        batch.append(
            {
                "ids": ids,
                "labels": np.where(rng.random(ids.shape) < 0.3, IGNORED, np.roll(ids, -1, 1)).astype(np.int32),
                "pixels": rng.standard_normal((size, 2, PATCH)).astype(np.float32),
                "sound": rng.standard_normal((size, 3, PATCH)).astype(np.float32),
            }
        )
    return batch
