"""MindFormers' submodules for a graph of one worker: no operators that only semi-automatic parallelism understands.

Shapes: S tokens of a text, B texts, H features, A query heads and K key heads of this worker, E features per head,
N/M features in and out of a projection.
"""

from __future__ import annotations

import math
from dataclasses import replace

import mindspore as ms
import numpy as np
from mindformers.parallel_core.training_graph.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from mindformers.parallel_core.training_graph.transformer.attention import SelfAttention, SelfAttentionContiguous
from mindformers.parallel_core.training_graph.transformer.moe.moe_layer import MoELayer
from mindformers.parallel_core.utils.spec_utils import ModuleSpec
from mindspore import nn, ops

from hyperparallel.cells.tensor_parallel import Enter, Leave, TensorParallel
from mindformers_patch.experts import LocalExperts


def plain(cell: nn.Cell) -> nn.Cell:
    """Replace each Morph of a Cell by the function it wraps.

    A Morph tells semi-automatic parallelism not to look inside; outside of that it does nothing but break
    differentiation ("Illegal AnfNode").

    Args:
        cell: changed in place, with all Cells in it.

    Returns:
        The same Cell.
    """
    for _, one in cell.cells_and_names():
        morphs = {name: part for name, part in one._primitives.items() if part is not None and part.name == "Morph"}
        for name, morph in morphs.items():
            del one._primitives[name]
            vars(one).pop(name, None)
            setattr(one, name, morph.__morph_fn__)
    return cell


class EnterColumn(ColumnParallelLinear):
    """A projection of which each shard has some outputs; its input is the same on all shards.

    Args:
        parallel: this worker's place among the T workers of its stage.
        args, kwargs: as MindFormers', with the sizes of this shard.
    """

    def __init__(self, *args, parallel: TensorParallel, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.enter = Enter(parallel)

    def construct(self, input_: ms.Tensor, weight: ms.Tensor | None = None):
        """Multiply (S, B, N) to (S, B, M / T)."""
        return super().construct(self.enter(input_), weight)


class LeaveRow(RowParallelLinear):
    """A projection of which each shard has some inputs; the results are added up.

    Args:
        parallel: this worker's place among the T workers of its stage.
        args, kwargs: as MindFormers', with the sizes of this shard; a bias is left to the caller.
    """

    def __init__(self, *args, parallel: TensorParallel, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        assert self.skip_bias_add or not self.has_bias, "a bias would be added once for each shard"
        self.leave = Leave(parallel)

    def construct(self, input_: ms.Tensor):
        """Multiply (S, B, N / T) to (S, B, M) and add up over the shards."""
        output, bias = super().construct(input_)
        return self.leave(output), bias


class EagerAttention(nn.Cell):
    """Attention by plain operators, for devices without MindFormers' flash attention (CPU).

    Args:
        config: as for MindFormers' attention, with the heads of this shard.
        layer_number: not used.
    """

    def __init__(self, config, layer_number: int) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_query_groups
        self.head = config.kv_channels
        self.scale = 1.0 / math.sqrt(self.head)
        self.mix = ops.BatchMatMul()
        self.match = ops.BatchMatMul(transpose_b=True)

    def construct(self, q_SBAE: ms.Tensor, k_SBKE: ms.Tensor, v_SBKE: ms.Tensor, mask_11SS: ms.Tensor) -> ms.Tensor:
        """Mix values.

        Args:
            q_SBAE: queries.
            k_SBKE: keys, fewer heads.
            v_SBKE: values, fewer heads.
            mask_11SS: 1 where a query (row) must not look, else 0.

        Returns:
            (S, B, A E).
        """
        length, rows = q_SBAE.shape[:2]
        q_BASE = q_SBAE.reshape(length, rows, self.heads, self.head).transpose(1, 2, 0, 3).astype(ms.float32)
        k_BASE, v_BASE = self._heads(k_SBKE), self._heads(v_SBKE)
        scores_BASS = self.match(q_BASE, k_BASE) * self.scale - mask_11SS.astype(ms.float32) * 1e9
        mixed_BASE = self.mix(ops.softmax(scores_BASS, -1), v_BASE)
        return mixed_BASE.transpose(2, 0, 1, 3).reshape(length, rows, -1).astype(q_SBAE.dtype)

    def _heads(self, x_SBKE: ms.Tensor) -> ms.Tensor:
        """Give every query head its own copy of the key or value head it shares."""
        length, rows = x_SBKE.shape[:2]
        x_BKSE = x_SBKE.reshape(length, rows, self.groups, self.head).transpose(1, 2, 0, 3).astype(ms.float32)
        each = self.heads // self.groups
        x_BKXSE = ops.tile(x_BKSE.expand_dims(2), (1, 1, each, 1, 1))
        return x_BKXSE.reshape(rows, self.heads, length, self.head)


class _OwnHeads:
    """Leave keys and values as they are: MindFormers repeats them for another layout than it uses here."""

    def _repeat_kv(self, x: ms.Tensor, rep: int) -> ms.Tensor:
        return x


class EagerSelfAttention(_OwnHeads, SelfAttention):
    """MindFormers' attention with query, key and value rows in groups, around `EagerAttention`."""


class EagerSelfAttentionContiguous(_OwnHeads, SelfAttentionContiguous):
    """MindFormers' attention with query, key and value rows one after the other, around `EagerAttention`."""


_EAGER = {SelfAttention: EagerSelfAttention, SelfAttentionContiguous: EagerSelfAttentionContiguous}


def local_spec(spec: ModuleSpec, parallel: TensorParallel, eager: bool) -> ModuleSpec:
    """Change the specification of a layer to what runs on one worker.

    Args:
        spec: MindFormers' specification of a transformer layer; with T > 1 without experts and latent attention.
        parallel: this worker's place among the T workers of its stage.
        eager: use plain operators for attention.

    Returns:
        A new specification.
    """
    attention, mlp = spec.submodules.self_attention, spec.submodules.mlp
    inner, module = {}, attention.module
    if eager:
        module = _EAGER.get(attention.module, attention.module)
        inner["core_attention"] = EagerAttention
    outer = {}
    if parallel.size > 1:
        place = {"parallel": parallel}
        column, row = ModuleSpec(EnterColumn, params=place), ModuleSpec(LeaveRow, params=place)
        inner |= {"linear_qkv": column, "linear_proj": row}
        outer["mlp"] = replace(mlp, submodules=replace(mlp.submodules, linear_fc1=column, linear_fc2=row))
    if mlp.module is MoELayer:
        outer["mlp"] = replace(mlp, submodules=replace(mlp.submodules, experts=LocalExperts))
    outer["self_attention"] = replace(attention, module=module, submodules=replace(attention.submodules, **inner))
    return replace(spec, submodules=replace(spec.submodules, **outer))


def causal_mask(length: int) -> ms.Tensor:
    """Make the mask that all layers share: (1, 1, S, S) uint8, 1 above the diagonal.

    Texts are padded on the right, where nothing of the text looks, so padding needs no mask of its own.
    """
    return ms.Tensor(np.triu(np.ones((1, 1, length, length), np.uint8), 1))
