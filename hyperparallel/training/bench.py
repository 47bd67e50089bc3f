"""Measure schedules side by side and compare with what the cost model predicts for them.

All of it runs in one job: the cost of every layer, of a message and of every action is measured first; then
the schedules take turns, step by step, on the same batches.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np

from hyperparallel.algebra import Action, Plan
from hyperparallel.algebra.footprint import footprint
from hyperparallel.algebra.program import SEND_B, SEND_F, B, F, Piece, micro_batch
from hyperparallel.cells.dropout import RANDOM
from hyperparallel.cells.layer import Layer, model_spec, trained
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.stepwise import Runner
from hyperparallel.cells.transport import Tag, Transport
from hyperparallel.cost import Costs, simulate
from hyperparallel.planner import plan_line
from hyperparallel.training.build import build_feed, build_layers, build_optimizer
from hyperparallel.training.config import Config
from hyperparallel.training.planning import mean_costs, settings_of
from hyperparallel.training.steps import MicroBatches, batches

BATCHES, WARMUP, CALIBRATION, ROUNDS, LAPS = 3, 2, 3, 5, 60
"""Batches; rounds over all of them to compile, to measure actions and to measure steps; round trips of a message."""


@dataclass
class Contestant:
    """One schedule in the comparison."""

    label: str
    plan: Plan
    runner: Runner
    data: list[MicroBatches]
    costs: list[Costs]
    overhead: list[float]
    measured: list[list[float]]


def bench(config: Config, transport: Transport, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the comparison; every rank of the job calls this.

    Args:
        config: its schedule is compared with both inline forms.
        transport: this rank's place in the job.
        progress: told what is being done, on every rank.

    Returns:
        What `report_bench` prints; the same on every rank.
    """
    layers = build_layers(config)
    parts = "+".join(model_spec(layers).parts)
    progress("measuring layers and messages")
    alpha, beta = measure_messages(transport)
    layer_costs = measure_layers(config, layers, transport)
    spec = model_spec(layers, layer_costs)
    contestants = []
    for label, line in (
        ("inline, even", f"1f1b({parts})"),
        ("inline, balanced", f"1f1b({parts}, slabs=balanced)"),
        ("configured", config.schedule),
    ):
        plan = plan_line(
            line,
            spec,
            config.parallel.ranks,
            config.training.micro_batches,
            lambda plan: mean_costs(config, plan, layers),
            settings_of(config),
        ).plan
        progress(f"compiling {plan.schedule}")
        contestants.append(_enter(label, plan, config, layers, transport))
    progress("measuring actions")
    for contestant in contestants:
        _calibrate(contestant, transport, alpha, beta)
    for number in range(ROUNDS):
        progress(f"measuring steps, round {number + 1} of {ROUNDS}")
        for index in range(BATCHES):
            for contestant in contestants:
                contestant.measured[index].append(_timed_step(contestant, index, transport)[0])
    return _result(contestants, config, alpha, beta)


def measure_messages(transport: Transport) -> tuple[float, float]:
    """Measure alpha (seconds a message) and beta (seconds a byte) between ranks 0 and 1; zero for one rank."""
    if transport.size == 1:
        return 0.0, 0.0
    times = {}
    for size in (1 << 12, 1 << 20):
        payload = np.zeros(size // 4, np.float32)
        laps = []
        for lap in range(LAPS):
            tag = Tag(Action(0, SEND_F, lap), 0)
            start = time.perf_counter()
            if transport.rank == 0:
                transport.send(1, tag, [payload])
                transport.receive(1, tag)
            elif transport.rank == 1:
                transport.receive(0, tag)
                transport.send(0, tag, [payload])
            laps.append((time.perf_counter() - start) / 2)
        times[size] = float(np.median(laps[LAPS // 6 :]))
    mine = np.array([times[1 << 12], times[1 << 20]], np.float32) * (transport.rank == 0)
    small, large = transport.sum(mine, range(transport.size))
    transport.flush()
    beta = max(0.0, float(large - small) / ((1 << 20) - (1 << 12)))
    return float(small), beta


def measure_layers(config: Config, layers: Sequence[Layer], transport: Transport) -> list[float]:
    """Measure forward + backward of every layer on this machine, mean over the micro-batches of a step.

    Every rank runs the whole model, layer by layer, on one core like in training; ranks take the mean, so all
    derive the same slabs. A layer that gets no gradient in any schedule costs its forward only.

    Returns:
        Seconds per micro-batch, by layer.
    """
    gates = footprint(trained(layers))
    slabs = [
        Slab(
            layers,
            (index, index + 1),
            config.training.seed,
            backward=gates[index].receives_gradient,
            sends_gradient=gates[index].sends_gradient,
            jit=config.run.jit,
        )
        for index in range(len(layers))
    ]
    feed = build_feed(config, "train")
    columns = tuple(dict.fromkeys(column for layer in layers for column in layer.columns if column != RANDOM))
    micro_batches = [feed.micro_batch(0, m, columns) for m in range(config.training.micro_batches)]
    laps = [[_time_layers(slabs, batch) for batch in micro_batches] for _ in range(3)]
    mine = np.median(np.array(laps[1:]), axis=0).mean(axis=0)
    return [float(x) for x in transport.sum(mine.astype(np.float32), range(transport.size)) / transport.size]


def _time_layers(slabs: Sequence[Slab], micro_batch: dict[str, np.ndarray]) -> list[float]:
    """Run one micro-batch forward and backward through single layers; return each one's time."""
    times, saved, carry = [], [], None
    for slab in slabs:
        inputs = slab.inputs(carry, micro_batch, 0)
        start = time.perf_counter()
        carry = slab.forward(inputs, train=True)
        _wait(carry)
        times.append(time.perf_counter() - start)
        saved.append((inputs, carry))
    gradient = Slab.loss_gradient(carry)
    for index in reversed(range(len(slabs))):
        if not slabs[index].trains:
            break
        start = time.perf_counter()
        gradient, weights = slabs[index].backward(saved[index][0], gradient)
        _wait(weights or gradient)
        times[index] += time.perf_counter() - start
    return times


def _wait(tensors: Any) -> None:
    for tensor in tensors if isinstance(tensors, tuple | list) else (tensors,):
        tensor.asnumpy()


def _enter(label: str, plan: Plan, config: Config, layers: Sequence[Layer], transport: Transport) -> Contestant:
    """Build a schedule's runner and data, and run every batch until all is compiled."""
    runner = Runner(
        plan,
        layers,
        transport=transport,
        optimizer=build_optimizer(config),
        seed=config.training.seed,
        jit=config.run.jit,
    )
    data = list(batches(runner, build_feed(config, "train"), 0, BATCHES))
    contestant = Contestant(label, plan, runner, data, [], [], [[] for _ in data])
    for _ in range(WARMUP):
        for index in range(BATCHES):
            _timed_step(contestant, index, transport)
    return contestant


def _timed_step(contestant: Contestant, index: int, transport: Transport) -> tuple[float, float]:
    """Run one step from a common start; return its time and when this rank was through with its program."""
    transport.sum(np.zeros(1, np.float32), range(transport.size))
    start = time.perf_counter()
    contestant.runner.step(contestant.data[index])
    transport.sum(np.zeros(1, np.float32), range(transport.size))
    end = time.perf_counter() - start
    return end, contestant.runner.walked - start


def _calibrate(contestant: Contestant, transport: Transport, alpha: float, beta: float) -> None:
    """Measure every action of every batch, and what a step takes besides its program (reduces, update)."""
    plan, ranks = contestant.plan, range(transport.size)
    shape = (BATCHES, plan.placement.stages, len(_KINDS), plan.micro_batches, plan.placement.split)
    rounds = np.zeros((CALIBRATION, *shape), np.float32)
    sizes = np.zeros(shape, np.float32)
    rest = np.zeros((CALIBRATION, BATCHES), np.float32)
    contestant.runner.records = []
    for lap in range(CALIBRATION):
        for index in range(BATCHES):
            end, walked = _timed_step(contestant, index, transport)
            rest[lap, index] = end - walked
            for record in contestant.runner.records:
                stage, kind, unit = record.action
                place = stage, _KINDS.index(kind), micro_batch(unit), unit.index if isinstance(unit, Piece) else 0
                rounds[(lap, index, *place)] = record.end - record.start
                sizes[(index, *place)] = record.bytes
    contestant.runner.records = None
    times = transport.sum(np.median(rounds, axis=0), ranks)
    sizes = transport.sum(sizes, ranks)
    # Every rank measures the rest from its own end; the last to finish its program sees the true one.
    rest = _minimum(np.median(rest, axis=0), transport)
    for index in range(BATCHES):
        contestant.costs.append(_costs(times[index], sizes[index], alpha, beta, plan.ranks))
        contestant.overhead.append(float(rest[index]))


_KINDS = (F, B, SEND_F, SEND_B)


def _costs(pieces: np.ndarray, piece_sizes: np.ndarray, alpha: float, beta: float, ranks: int) -> Costs:
    """Make costs by stage, kind and micro-batch; packing a message is work of the stage that sends it.

    Pieces have the share of an encode that their forwards took.
    """
    compute, message_bytes, shares = {}, {}, ()
    times, sizes = pieces.sum(axis=-1), piece_sizes.sum(axis=-1)
    if pieces.shape[-1] > 1:
        encodes = pieces[:ranks, _KINDS.index(F)].sum(axis=0)  # each piece on one rank only
        shares = (encodes / np.maximum(encodes.sum(axis=-1, keepdims=True), 1e-12)).tolist()
    for stage in range(times.shape[0]):
        for kind, send in ((F, SEND_F), (B, SEND_B)):
            own, message = _KINDS.index(kind), _KINDS.index(send)
            compute[stage, kind] = [float(x) for x in times[stage, own] + times[stage, message]]
            message_bytes[stage, send] = [float(x) for x in sizes[stage, message]]
    return Costs(compute, alpha, beta, message_bytes, shares)


def _minimum(values: np.ndarray, transport: Transport) -> np.ndarray:
    """Smallest value over all ranks, by a sum of one slot per rank."""
    table = np.zeros((transport.size, *values.shape), np.float32)
    table[transport.rank] = values
    return transport.sum(table, range(transport.size)).min(axis=0)


def _result(contestants: Sequence[Contestant], config: Config, alpha: float, beta: float) -> dict[str, Any]:
    rows = []
    for one in contestants:
        predicted = [
            simulate(one.plan, costs).step_time + overhead
            for costs, overhead in zip(one.costs, one.overhead, strict=True)
        ]
        rows.append(
            {
                "label": one.label,
                "schedule": str(one.plan.schedule),
                "slabs": [last - first for first, last in one.plan.placement.slabs],
                "measured": [float(np.median(times)) for times in one.measured],
                "spread": [[min(times), max(times)] for times in one.measured],
                "predicted": predicted,
            }
        )
    base = contestants[-1].measured
    for row, one in zip(rows, contestants, strict=True):
        # Steps of one round ran one after the other, so their quotient is free of slow drift.
        quotients = np.array(one.measured) / np.array(base)
        row["ratio"] = float(np.median(quotients))
        row["ratio_spread"] = [float(np.quantile(quotients, 0.25)), float(np.quantile(quotients, 0.75))]
        row["predicted_ratio"] = float(sum(row["predicted"]) / sum(rows[-1]["predicted"]))
    feed = build_feed(config, "train")
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores, one per rank; MindSpore {ms.__version__} on CPU",
        "ranks": config.parallel.ranks,
        "micro_batches": config.training.micro_batches,
        "images": [[info.images for info in feed.describe(step)] for step in range(BATCHES)],
        "alpha": alpha,
        "beta": beta,
        "rows": rows,
    }


def processor() -> str:
    """Name the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
