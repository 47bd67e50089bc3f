"""What the tests of running share: a tiny MLLM, steps with varying images, cases, and one process as reference.

The reference is written without the package's runner: plain MindSpore, one sample after the other, the tied
head holding the embedding's own Parameter, gradients by `value_and_grad`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor
from mindspore.experimental import optim

from hyperparallel import AdamW, Costs, Layer, Plan, model_spec
from hyperparallel.cells.dropout import RANDOM, random_key
from hyperparallel.cells.layer import build_layer
from hyperparallel.cells.tensor_parallel import WHOLE, TensorParallel
from hyperparallel.data import COLUMNS, Digits, DigitsConfig, Sample, collate
from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig, mllm
from hyperparallel.planner import Settings, plan_line

STEPS = 5
SETTINGS = AdamW(lr=3e-3, weight_decay=0.1, clip_norm=1.0)
SEED = 7
_READ = ("pixel_values", "input_ids", "labels")
NO_IMAGE = 3  # this step has none at all
# Images of the 8 samples of a step: micro-batches of two samples hold 0, 1, 3, 2 images.
IMAGES = (0, 0, 1, 0, 2, 1, 0, 2)


@dataclass(frozen=True)
class Case:
    """One run to compare with one process."""

    schedule: str
    ranks: int
    micro_batches: int = 4
    data_parallel: int = 1
    vision: bool = True
    llm: bool = True
    tied: bool = True
    jit: bool = True
    pad: int = 32  # one length of text; 8 gives several
    evaluates: bool = False  # evaluate before every step too
    deep: bool = False  # one more block in each part
    parts: str = "vision+llm"  # "+gen" calls the last two layers so, "+audio" all vision layers but the first
    passes: int = 1  # of the plan, to a step: each has micro_batches / passes of the micro-batches
    dropout: float = 0.0
    freeze: str = ""  # patterns of names of layers, separated by blanks
    recompute: str = ""  # stages, separated by blanks
    dtype: str = "float32"
    scale: float = 1.0  # factor on the loss at the start

    @property
    def workers(self) -> int:
        """Ranks of the job, all replicas together."""
        return self.ranks * self.data_parallel

    @property
    def name(self) -> str:
        """File-name safe and unique."""
        return "_".join(str(value) for value in asdict(self).values()).translate(
            str.maketrans(" ()>,=[]*+", "----------")
        )


INLINE, GPIPE, TRANSPOSE = "1f1b(vision+llm)", "gpipe(vision+llm)", "transpose(vision) >> 1f1b(llm)"
FILL = "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
SPLIT = "transpose(vision, split=2) >> 1f1b(llm)"
PROJECTOR = "vision.patch vision.blocks.* llm.*"
HEAD = "vision.* llm.embed llm.blocks.*"

CASES = [
    *(Case(schedule, ranks) for ranks in (1, 2, 4) for schedule in (INLINE, GPIPE, TRANSPOSE)),
    *(Case(schedule, ranks, vision=False) for ranks in (1, 2, 4) for schedule in (INLINE, TRANSPOSE)),
    Case(GPIPE, 2, vision=False),
    Case(TRANSPOSE, 2, micro_batches=1),
    Case(INLINE, 4, micro_batches=2),
    Case(TRANSPOSE, 4, micro_batches=2),
    Case(TRANSPOSE, 2, data_parallel=2),
    Case(INLINE, 2, data_parallel=2),
    Case(TRANSPOSE, 2, data_parallel=2, vision=False),
    Case(TRANSPOSE, 2, llm=False),
    Case(TRANSPOSE, 2, tied=False),
    Case("transpose(vision, owner=[1,1,0,1]) >> gpipe(llm)", 2),
    Case("1f1b(vision+llm, slabs=[3,4])", 2),
    Case(TRANSPOSE, 2, pad=8, evaluates=True),
    Case(INLINE, 4, pad=8),
    Case(TRANSPOSE, 2, jit=False),
    # Interleaving, fold, split backward.
    Case("1f1b(vision+llm)*2", 2),
    Case("transpose(vision) >> 1f1b(llm)*2", 2, vision=False),
    Case("1f1b(vision) >> 1f1b(llm)", 2),
    Case("wave(vision+llm)", 2),
    Case("zb(vision+llm)", 4),
    Case("transpose(vision) >> zb(llm, fold=v)", 2),
    Case("1f1b(vision) >> gpipe(llm)", 2),
    # Replicated regions elsewhere, and two encoders.
    Case("transpose(vision) >> 1f1b(llm) >> transpose(gen)", 2, parts="vision+llm+gen"),
    Case("1f1b(vision) >> transpose(llm) >> zb(gen)", 2, parts="vision+llm+gen"),
    Case("transpose(vision+audio) >> 1f1b(llm)", 2, parts="vision+audio+llm"),
    # Images in pieces: more pieces than images of some micro-batches, on one rank and on several.
    Case(SPLIT, 1),
    Case(SPLIT, 2),
    Case(SPLIT, 4, vision=False),
    Case("transpose(vision, split=4, owner=[1,0,0,1]) >> zb(llm)", 2, jit=False),
    # Planned: encodes and encoder backwards anywhere between the steps of the backbone.
    Case(FILL, 2),
    Case(FILL.replace("fill", "fill, split=2"), 4),
    Case(FILL.replace("1f1b", "gpipe"), 2),
    Case(FILL.replace("1f1b(llm)", "1f1b(llm)*2"), 2, vision=False),
    Case(FILL.replace("1f1b", "wave"), 2),
    Case(FILL.replace("fill", "fill, split=2").replace("1f1b", "zb"), 2, data_parallel=2),
    Case(FILL.replace(", place=fill", ""), 2),
    # Micro-batches of one sample, each of its own length; and 8 samples in 3.
    Case(INLINE, 1, micro_batches=8, pad=1),
    Case(TRANSPOSE, 2, micro_batches=8, pad=1),
    Case(TRANSPOSE, 2, micro_batches=3),
    # Several passes to a step, of other lengths.
    Case(TRANSPOSE, 2, passes=2, pad=1),
    Case("zb(vision+llm)", 4, micro_batches=8, passes=2, pad=8),
    Case("wave(vision+llm)", 4, deep=True),
    Case(INLINE, 2, micro_batches=4, data_parallel=2, passes=2),
    # Dropout: by micro-batch, so all of these cut the 8 samples into 4.
    *(Case(schedule, ranks, dropout=0.2) for schedule, ranks in ((INLINE, 1), (TRANSPOSE, 2), (GPIPE, 4), (SPLIT, 2))),
    Case(TRANSPOSE, 2, dropout=0.2, pad=8, recompute="0 1 2 3"),
    Case(INLINE, 2, dropout=0.2, micro_batches=2, data_parallel=2),
    Case(INLINE, 2, dropout=0.2, passes=2),
    Case(FILL.replace("1f1b(llm)", "1f1b(llm)*2"), 2, dropout=0.2, evaluates=True),
    # Forwards that run again.
    Case(INLINE, 4, recompute="0 2 3"),
    Case(TRANSPOSE, 2, recompute="0 1 3"),
    # All but the projector is frozen, or all but the head: most ranks have nothing to train.
    *(Case(schedule, ranks, freeze=PROJECTOR) for schedule, ranks in ((INLINE, 1), (INLINE, 4), (TRANSPOSE, 2))),
    *(Case(schedule, ranks, freeze=HEAD, tied=False) for schedule, ranks in ((INLINE, 4), (TRANSPOSE, 2))),
    Case(INLINE, 1, dtype="float16", scale=1024.0),
    Case(TRANSPOSE, 2, dtype="float16", scale=1024.0),
    Case("zb(vision+llm)", 4, dtype="float16", scale=1024.0),
]


def plan_of(case: Case, layers: tuple[Layer, ...]) -> Plan:
    """Derive the plan of a case; the planner is told that every third micro-batch has a heavy encode."""
    spec = model_spec(layers)

    def costs_of(plan: Plan) -> Costs:
        stages = range(plan.placement.stages)
        encode = [9.0 if mb % 3 == 1 else 2.0 for mb in range(plan.micro_batches)]
        compute = {(stage, kind): encode if stage < plan.ranks else 3.0 for stage in stages for kind in "FB"}
        split = plan.placement.split
        return Costs(compute, alpha=0.5, shares=[(1 / split,) * split] * plan.micro_batches)

    micro_batches = case.micro_batches // case.passes
    return plan_line(case.schedule, spec, case.ranks, micro_batches, costs_of, Settings(engine="list")).plan


def layers_of(case: Case, parallel: TensorParallel = WHOLE) -> tuple[Layer, ...]:
    """Build the model of a case: 3 vision layers, and 4 backbone layers, one for each of up to 4 ranks."""
    layers = mllm(
        MllmConfig(
            vision=VisionConfig(
                width=16, depth=1 + case.deep, heads=2, ffn=32, trainable=case.vision, dropout=case.dropout
            ),
            llm=DecoderConfig(
                vocab_size=16,
                width=24,
                depth=2 + case.deep,
                heads=4,
                kv_heads=2,
                ffn=32,
                max_length=32,
                tied=case.tied,
                trainable=case.llm,
                dropout=case.dropout,
            ),
            image_token=3,
            freeze=tuple(case.freeze.split()),
        ),
        parallel,
    )
    renamed = {}
    if "gen" in case.parts:
        renamed |= dict.fromkeys([layer.name for layer in layers[-2:]], "gen")
    if "audio" in case.parts:
        renamed |= dict.fromkeys([layer.name for layer in layers if layer.part == "vision"][1:], "audio")
    return tuple(replace(layer, part=renamed.get(layer.name, layer.part)) for layer in layers)


@cache
def samples_of(step: int) -> tuple[Sample, ...]:
    """Return the 8 samples of a step; the same for every number of ranks, replicas and micro-batches."""
    counts = [0] * len(IMAGES) if step == NO_IMAGE else IMAGES
    return tuple(
        Digits(DigitsConfig(min_images=n, max_images=n), 4, "train").sample(step * len(counts) + index)
        for index, n in enumerate(counts)
    )


def batch_of(step: int, case: Case, replica: int) -> list[dict[str, np.ndarray]]:
    """Cut a step's samples into the micro-batches of one replica."""
    slots = case.micro_batches * case.data_parallel
    at = [-(-slot * len(IMAGES) // slots) for slot in range(slots + 1)]
    own = range(replica * case.micro_batches, (replica + 1) * case.micro_batches)
    return [collate(samples_of(step)[at[slot] : at[slot + 1]], COLUMNS, case.pad) for slot in own]


class Reference(NamedTuple):
    """What training in one process gives."""

    losses: list[float]
    norms: list[float]
    initial: dict[str, np.ndarray]
    final: dict[str, np.ndarray]


class Kind(NamedTuple):
    """What the numbers of a case depend on."""

    vision: bool = True
    llm: bool = True
    tied: bool = True
    dtype: str = "float32"
    deep: bool = False
    freeze: str = ""
    dropout: float = 0.0


def kind_of(case: Case) -> Kind:
    """Return what the numbers of a case depend on: not the schedule, P, D, M, passes, padding or recompute."""
    return Kind(**{field: getattr(case, field) for field in Kind._fields})


@cache
def reference(*kind) -> Reference:
    """Train in one process without pipeline: sample by sample, or with dropout by micro-batches of two samples."""
    kind = Kind(*kind)
    tied, dropout = kind.tied, kind.dropout
    layers = layers_of(Case("", 1, **kind._asdict()))
    cells = [build_layer(layer, SEED).set_train(True) for layer in layers]
    for cell in cells if kind.dtype != "float32" else ():
        cell.to_float(getattr(ms, kind.dtype))
    read = (*_READ, RANDOM) if dropout else _READ
    picks = [tuple(read.index(column) for column in layer.columns) for layer in layers]
    if tied:
        cells[-1].weight = cells[[layer.name for layer in layers].index("llm.embed")].weight
    unique = {parameter.name: parameter for cell in cells for parameter in cell.get_parameters()}
    trained = [parameter for parameter in unique.values() if parameter.requires_grad]

    def summed_loss(*columns):
        carry = cells[0](columns[0])
        for index in range(1, len(cells)):
            arguments = ()
            for column in picks[index]:
                arguments += (columns[column],)
            carry = cells[index](carry, *arguments)
        return carry[0], carry[1]

    differentiate = ms.jit(ms.value_and_grad(summed_loss, None, ms.ParameterTuple(trained), has_aux=True))
    groups = [
        {"params": [p for p in trained if (p.ndim >= 2) is matrix], "weight_decay": decay}
        for matrix, decay in ((True, SETTINGS.weight_decay), (False, 0.0))
        if any((p.ndim >= 2) is matrix for p in trained)
    ]
    adamw = optim.AdamW(groups, lr=SETTINGS.lr, betas=SETTINGS.betas, eps=SETTINGS.eps)
    order = [p.name for matrix in (True, False) for p in trained if (p.ndim >= 2) is matrix]
    losses, norms, initial = [], [], _values(unique, tied)
    for step in range(STEPS):
        total, weights, sums = 0.0, 0.0, [0.0] * len(trained)
        for mb, samples in enumerate(_cut(step, 2 if dropout else 1)):
            batch = {**collate(samples, _READ, pad_to_multiple=32), RANDOM: random_key(SEED, step, mb)}
            (loss, weight), gradients = differentiate(*(Tensor(batch[column]) for column in read))
            total, weights = total + float(loss), weights + float(weight)
            sums = [left + right.asnumpy().astype(np.float64) for left, right in zip(sums, gradients, strict=True)]
        mean = {p.name: value / weights for p, value in zip(trained, sums, strict=True)}
        norm = np.sqrt(sum((value**2).sum() for value in mean.values()))
        scale = min(1.0, SETTINGS.clip_norm / max(norm, 1e-30))
        adamw(tuple(Tensor((mean[name] * scale).astype(np.float32)) for name in order))
        losses.append(total / weights)
        norms.append(norm)
    return Reference(losses, norms, initial, _values(unique, tied))


def _cut(step: int, size: int) -> list[tuple[Sample, ...]]:
    samples = samples_of(step)
    return [samples[first : first + size] for first in range(0, len(samples), size)]


def _values(parameters: dict[str, Parameter], tied: bool) -> dict[str, np.ndarray]:
    values = {name: parameter.asnumpy().copy() for name, parameter in parameters.items()}
    return {**values, "llm.head.weight": values["llm.embed.weight"]} if tied else values


def relative_difference(left: np.ndarray, right: np.ndarray) -> float:
    """Largest difference over the largest value of the reference `right`."""
    scale = float(np.abs(right).max())
    return float(np.abs(left - right).max()) / scale if scale else float(np.abs(left).max())
