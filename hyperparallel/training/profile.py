"""Measure what every layer costs on this machine's device, for `hyperparallel profile`.

Layers are timed one by one, each alone in memory and equal ones once, for several sizes of a micro-batch; then every
stage of the configured plan as a whole, which shows what a call costs beyond its layers and how well they predict it. A
backward is timed where the model has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np

from hyperparallel.algebra import Plan
from hyperparallel.algebra.footprint import Gates, footprint
from hyperparallel.algebra.program import B, F
from hyperparallel.cells.layer import Layer, trained
from hyperparallel.cells.slab import Carry, Slab
from hyperparallel.cells.transport import Transport
from hyperparallel.cost.measured import Fit, MeasuredCosts, MeasuredLayer, MeasuredStage, fit
from hyperparallel.cost.roofline import costs_from_layers
from hyperparallel.training.bench import measure_messages
from hyperparallel.training.build import PAD_TO_MULTIPLE, build_layers, room_of, samples_of
from hyperparallel.training.config import Config
from hyperparallel.training.costs import conditions, identities
from hyperparallel.training.planning import build_plan

LAPS = 15
"""Measured runs of each size after the one that compiles; the lower quartile counts, since only others slow a run."""

_SOME = {"images": 3, "samples": 2, "tokens": 48}

Size = dict[str, int]
Times = np.ndarray
"""Seconds (2, sizes): forward and backward; backward 0 where there is none."""


def profile(config: Config, transport: Transport, progress: Callable[[str], None]) -> MeasuredCosts:
    """Measure a configuration; every rank of the job calls this.

    All ranks measure all layers at the same time, as in training, and take the mean.

    Args:
        config: gives the model, the plan and the limits of the sizes; T must be 1.
        transport: this rank's place in the job.
        progress: told what is being done, on every rank.

    Returns:
        The content of the file; the same on every rank.
    """
    layers = build_layers(config)
    plan = build_plan(config, layers)
    sizes = sizes_to_run(config)
    progress("measuring messages")
    alpha, beta = measure_messages(transport)
    gates = footprint(trained(layers))
    firsts = first_alike(layers, gates)
    singles = [(index, index + 1) for index in dict.fromkeys(firsts)]
    alone = _measure(config, layers, singles, [gates[one] for one, _ in singles], sizes, transport, progress)
    found = {first: times for (first, _), times in zip(singles, alone, strict=True)}
    of_layers = [found[first] for first in firsts]
    spans, of_spans = slabs_of(plan)
    of_stages = _measure(config, layers, spans, of_spans, sizes, transport, progress)
    fits = _fits(layers, of_layers, sizes)
    call = {kind: _call(row, of_layers, of_stages, spans, gates) for row, kind in enumerate((F, B))}
    measured = MeasuredCosts(
        device=ms.get_context("device_target"),
        conditions=conditions(config),
        sizes=sizes,
        alpha=alpha,
        beta=beta,
        call=call,
        layers=fits,
        stages=[],
    )
    return measured.model_copy(update={"stages": _check(measured, plan, of_stages, spans)})


def sizes_to_run(config: Config) -> list[Size]:
    """List the micro-batches to measure: few and many images with short and long texts, and one that is not fitted."""
    room, samples = room_of(config), samples_of(config)
    images = room.images if config.model.vision else 1

    def size(image_share: float, token_share: float) -> Size:
        length = PAD_TO_MULTIPLE * round(1 + token_share * (room.tokens / PAD_TO_MULTIPLE - 1))
        return {"images": round(1 + image_share * (images - 1)), "samples": samples, "tokens": samples * length}

    shares = [(0, 0), (1, 1), (1, 0), (0, 1), (0.5, 0.5)]
    distinct = {tuple(size(*share).items()): size(*share) for share in shares}
    return [*distinct.values(), size(0.7, 0.3)]


def first_alike(layers: Sequence[Layer], gates: Sequence[Gates]) -> list[int]:
    """Return for every layer the first one that is like it: equal blocks are measured once.

    Alike are layers of the same part, class, work and gates; they hand on the same shapes too.
    """
    keys = [
        (layer.part, getattr(layer.build, "func", layer.build), layer.columns, gate, layer.work(_SOME))
        for layer, gate in zip(layers, gates, strict=True)
    ]
    return [keys.index(key) for key in keys]


def slabs_of(plan: Plan) -> tuple[list[tuple[int, int]], list[Gates]]:
    """List the different slabs of a plan in the order of the model, and their gates."""
    found = dict(zip(plan.placement.slabs, plan.placement.gates, strict=True))
    return sorted(found), [found[span] for span in sorted(found)]


def make_batch(config: Config, size: Size) -> dict[str, np.ndarray]:
    """Make a micro-batch of this size with random pixels and words, and as many placeholders as fit."""
    random, model = np.random.default_rng(0), config.model
    shape = (size["samples"], size["tokens"] // size["samples"])
    ids = random.integers(0, model.llm.vocab_size, shape, np.int32)
    batch = {"labels": ids.copy()}
    if model.vision is not None:
        ids[ids == model.image_token] = (model.image_token + 1) % model.llm.vocab_size
        ids.reshape(-1)[: size["images"] * model.vision.tokens_per_image] = model.image_token
        side = model.vision.image_size
        pixels = random.standard_normal((size["images"], model.vision.channels, side, side), np.float32)
        batch["pixel_values"] = pixels
    return {**batch, "input_ids": ids}


def _measure(
    config: Config,
    layers: Sequence[Layer],
    spans: Sequence[tuple[int, int]],
    gates: Sequence[Gates],
    sizes: Sequence[Size],
    transport: Transport,
    progress: Callable[[str], None],
) -> list[Times]:
    """Time slabs that follow each other, from the first layer to the last; mean over the ranks."""
    batches = [make_batch(config, size) for size in sizes]
    carries: list[Carry | None] = [None] * len(sizes)
    found = []
    for span, gate in zip(spans, gates, strict=True):
        names = [layers[index].name for index in (span[0], span[1] - 1)]
        progress(f"measuring {' .. '.join(dict.fromkeys(names))}")
        slab = Slab(
            layers,
            span,
            config.training.seed,
            backward=gate.receives_gradient,
            sends_gradient=gate.sends_gradient,
            jit=config.run.jit,
        )
        if config.run.dtype != "float32":
            slab.compute_in(config.run.dtype)
        mine, carries = time_slab(slab, carries, batches, LAPS)
        found.append(transport.sum(mine.astype(np.float32), range(transport.size)).astype(float) / transport.size)
    return found


def time_slab(
    slab: Slab, carries: Sequence[Carry | None], batches: Sequence[Mapping[str, np.ndarray]], laps: int
) -> tuple[Times, list[Carry]]:
    """Time one slab for several micro-batches, which take turns, so that slow moments hit all of them.

    Args:
        slab: forward and, where it has one, backward are timed.
        carries: what it gets, by micro-batch.
        batches: columns, by micro-batch.
        laps: measured runs after the first.

    Returns:
        Times (2, micro-batches) in seconds, and what it hands on.
    """
    inputs = [slab.inputs(carry, batch, mb) for mb, (carry, batch) in enumerate(zip(carries, batches, strict=True))]
    seconds = np.zeros((laps + 1, 2, len(batches)))
    outputs: list[Any] = [None] * len(batches)
    for lap in range(laps + 1):
        for mb, given in enumerate(inputs):
            with _Clock() as clock:
                outputs[mb] = slab.forward(given, train=True)
                _wait(outputs[mb])
            seconds[lap, 0, mb] = clock.seconds
            if slab.trains:
                gradient = slab.loss_gradient(outputs[mb]) if slab.is_last else _ones_like(outputs[mb])
                with _Clock() as clock:
                    upstream, weights = slab.backward(given, gradient)
                    _wait((*weights, *(upstream if isinstance(upstream, tuple) else (upstream,))))
                seconds[lap, 1, mb] = clock.seconds
    return np.quantile(seconds[1:], 0.25, axis=0), outputs


class _Clock:
    """Time a block. On CPU the time of this process counts where it is less: other programs are no cost of a layer."""

    def __enter__(self) -> _Clock:
        self._start, self._own = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, own = time.perf_counter() - self._start, time.process_time() - self._own
        if ms.get_context("device_target") == "CPU":
            self.seconds = min(self.seconds, own)


def _ones_like(carry: Carry) -> Carry:
    if isinstance(carry, tuple):
        return tuple(_ones_like(tensor) for tensor in carry)
    return ms.Tensor(np.ones(carry.shape, np.float32)).astype(carry.dtype)


def _wait(tensors: Any) -> None:
    """Wait until tensors are there. On a device that takes no copy; CPU does not know `synchronize`."""
    if ms.get_context("device_target") != "CPU":
        ms.runtime.synchronize()
        return
    for tensor in tensors if isinstance(tensors, tuple) else (tensors,):
        if tensor is not None:
            tensor.asnumpy()


def _fits(layers: Sequence[Layer], times: Sequence[Times], sizes: Sequence[Size]) -> list[MeasuredLayer]:
    """Fit every layer to all sizes but the last."""

    def fitted(seconds: np.ndarray, index: int) -> Fit | None:
        if not seconds.any():
            return None
        rows = [(size["images"], size["tokens"], s) for size, s in zip(sizes[:-1], seconds[:-1], strict=True)]
        return fit(rows, images=_grows(layers, index, "images"), tokens=_grows(layers, index, "tokens"))

    return [
        MeasuredLayer(
            name=name,
            trainable=trainable,
            work=work,
            forward=fitted(seconds[0], index),
            backward=fitted(seconds[1], index),
        )
        for index, ((name, trainable, work), seconds) in enumerate(zip(identities(layers), times, strict=True))
    ]


def _grows(layers: Sequence[Layer], index: int, what: str) -> bool:
    """Tell whether the work of a layer, or of the one whose carry it reads, depends on images or tokens."""
    more = {**_SOME, what: 2 * _SOME[what]}
    return any(layer.work(more) != layer.work(_SOME) for layer in layers[max(0, index - 1) : index + 1])


def _call(
    row: int,
    of_layers: Sequence[Times],
    of_stages: Sequence[Times],
    spans: Sequence[tuple[int, int]],
    gates: Sequence[Gates],
) -> float:
    """Find what a stage saves for every layer after its first: the median over stages and sizes."""
    saved: list[float] = []
    for (first, last), stage in zip(spans, of_stages, strict=True):
        count = sum(gate.receives_gradient for gate in gates[first:last]) if row else last - first
        if count > 1:
            together = sum(of_layers[index][row] for index in range(first, last))
            saved += [float(one) for one in (together - stage[row])[:-1] / (count - 1)]
    return max(0.0, float(np.median(saved))) if saved else 0.0


def _check(
    measured: MeasuredCosts, plan: Plan, of_stages: Sequence[Times], spans: Sequence[tuple[int, int]]
) -> list[MeasuredStage]:
    """Compare what the layers predict for each stage with what it took."""
    predicted = costs_from_layers(plan, [measured.times(size) for size in measured.sizes], calls=measured.call)
    found = []
    for span, stage in zip(spans, of_stages, strict=True):
        for row, kind in enumerate((F, B)):
            if stage[row].any():
                errors = predicted.compute[plan.placement.slabs.index(span), kind] / stage[row] - 1
                worst = float(errors[:-1][np.abs(errors[:-1]).argmax()])
                found.append(MeasuredStage(layers=span, kind=kind, error=worst, held_out=float(errors[-1])))
    return found
