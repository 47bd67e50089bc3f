"""Phases 1 and 3 of the route `run: three_phase`: the encoder, each image on one worker only.

Shapes: B texts of a replica's batch, I images of a text, N = B I, G workers that share a replica's images, n = images
of a worker (N / G rounded up), Q tokens of an image, H width of the LLM, K = 1 + I Q, S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, ParameterTuple, nn, ops

from mindformers_patch.gpt_features import place_images


@dataclass(frozen=True)
class Share:
    """Which images of a replica's batch a worker encodes.

    Args:
        size: G.
        index: 0 .. G - 1.
        group: name of the group of these G workers; None for G = 1.
        copies: how many times the whole feature gradient is among them. MindFormers' shards have parts of it, whose sum
            is the whole, once; workers that each have the whole LLM have it once each.
        gives: this one has some of it: it is in the first stage.
        job: name of the group of all workers that have the encoder; None if this is the only one.
        cpu: a CPU has no ReduceScatter, so a sum stands in for it.
    """

    size: int = 1
    index: int = 0
    group: str | None = None
    copies: int = 1
    gives: bool = True
    job: str | None = None
    cpu: bool = False

    def images(self, total: int) -> int:
        """Return n for N images."""
        return -(-total // self.size)


class Encoder(nn.Cell):
    """The encoder's layers, one after the other.

    Args:
        layers: from pixels to features.
    """

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(layers, auto_prefix=False)

    def construct(self, pixels_n1CHW: ms.Tensor) -> ms.Tensor:
        """Return features (n, Q, H)."""
        value = pixels_n1CHW
        for layer in self.layers:
            value = layer(value)
        return value


def own_images(pixels_BICHW: ms.Tensor, share: Share) -> ms.Tensor:
    """Return this worker's images (n, 1, C, H, W); blank ones fill up the last shares."""
    _, _, *shape = pixels_BICHW.shape
    pixels_NCHW = pixels_BICHW.reshape(-1, *shape)
    return own_rows(pixels_NCHW, share).expand_dims(1)


def own_rows(value_N: ms.Tensor, share: Share) -> ms.Tensor:
    """Return this worker's n of N rows."""
    count = share.images(value_N.shape[0])
    return filled(value_N, share)[share.index * count : (share.index + 1) * count]


def filled(value_N: ms.Tensor, share: Share) -> ms.Tensor:
    """Return (G n, ...): zeros after the N rows."""
    missing = share.images(value_N.shape[0]) * share.size - value_N.shape[0]
    if missing == 0:
        return value_N
    return ops.concat((value_N, ops.zeros((missing, *value_N.shape[1:]), value_N.dtype)), 0)


class Encode(nn.Cell):
    """Phase 1: this worker's images, then the features of all images of the replica.

    Args:
        encoder: its layers.
        share: this worker's.
        image_token: token id of a placeholder.
        tokens: Q.
        width: H.
        dtype: type of a feature.
    """

    def __init__(
        self, encoder: Encoder, share: Share, image_token: int, *, tokens: int, width: int, dtype: ms.Type
    ) -> None:
        super().__init__(auto_prefix=False)
        self.encoder, self.share, self.image_token = encoder, share, image_token
        self.tokens, self.width, self.dtype = tokens, width, dtype
        self.gather = ops.AllGather(group=share.group) if share.group else None

    def construct(self, input_ids_BS, pixels_BICHW):
        """Return features (B, K, H), rows (B, S) and texts (B, S, 1) as `FeatureGPT` takes them."""
        rows, images = pixels_BICHW.shape[:2]
        features = self.encoder(own_images(pixels_BICHW, self.share))
        if self.gather is not None:
            features = self.gather(features)[: rows * images]
        width = features.shape[-1]
        features_BKH = features.reshape(rows, -1, width)
        zeros_B1H = ops.zeros((rows, 1, width), features.dtype)
        rows_BS, keep_BS1 = place_images(input_ids_BS, self.image_token)
        return ops.concat((zeros_B1H, features_BKH), 1), rows_BS, keep_BS1


class EncodeBack(nn.Cell):
    """Phase 3: the encoder's gradients, each image's on the worker that encoded it, summed over the job.

    The forward runs again: its activations would have to leave phase 1 as outputs of that graph.

    Args:
        encoder: its layers, some of them trained.
        share: this worker's.
        scale: loss scale.
    """

    def __init__(self, encoder: Encoder, share: Share, scale: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.encoder, self.share, self.scale = encoder, share, scale
        self.weights = ParameterTuple(encoder.trainable_params())
        self.gradient = ops.GradOperation(get_by_list=True, sens_param=True)
        self.scatter = None
        if share.group:
            self.scatter = (ops.AllReduce if share.cpu else ops.ReduceScatter)(ops.ReduceOp.SUM, share.group)
        self.reduce = ops.AllReduce(ops.ReduceOp.SUM, share.job).add_prim_attr("fusion", 1) if share.job else None
        self.copies = 1.0 / share.copies

    def construct(self, pixels_BICHW, gradient_BKH, factor):
        """Return the sum of the squares of the gradients, and the gradients.

        Args:
            pixels_BICHW: images of the replica.
            gradient_BKH: of the loss times loss scale and `factor`, by the features.
            factor: what else gradients are to be divided by.
        """
        rows, images = pixels_BICHW.shape[:2]
        width = gradient_BKH.shape[-1]
        if not self.share.gives:
            gradient_BKH = ops.zeros_like(gradient_BKH)
        gradient_NQH = gradient_BKH[:, 1:].reshape(rows * images, -1, width).astype(ms.float32)
        if self.scatter is not None:
            gradient_NQH = self.scatter(filled(gradient_NQH, self.share)) * self.copies
            if self.share.cpu:
                gradient_NQH = own_rows(gradient_NQH, self.share)
        own = own_images(pixels_BICHW, self.share)
        features = self.encoder(own)
        gradients = self.gradient(self.encoder, self.weights)(own, gradient_NQH.astype(features.dtype))
        inverse = ops.reciprocal(self.scale) * ops.reciprocal(factor.reshape(()))
        ready, square = (), ops.zeros((1,), ms.float32)
        for gradient in gradients:
            one = gradient.astype(ms.float32) * inverse
            if self.reduce is not None:
                one = self.reduce(one)
            ready += (one,)
            square = square + ops.square(one).sum()
        return square, ready
