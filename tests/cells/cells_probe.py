"""What two ranks are asked besides training the cases: odd carries, counted forwards, messages, waits."""

from __future__ import annotations

import time

import numpy as np
from cells_record import own_columns
from cells_tiny import CALLS, tiny_batch, tiny_layers
from cells_writers import Norm, writer_batch, writer_layers

from hyperparallel import Runner, Transport, derive, model_spec
from hyperparallel.algebra import Action
from hyperparallel.cells.transport import Tag
from hyperparallel.errors import ModelError, TransportError

TINY_STEPS = 3
TINY_MICRO_BATCHES = 4
TINY_SCHEDULES = ("transpose(stem) >> 1f1b(net)", "1f1b(stem+net)")
WRITER_LINES = ("1f1b(enc+net)", "transpose(enc) >> 1f1b(net)")
SIZES = (10, 300_000, 10, 2_000_000, 0, 1_000)  # payloads in float32: a channel grows twice, then carries less


def train_tiny(schedule: str, transport: Transport, **kind) -> list[float]:
    """Train the tiny model with carries that are pairs of tensors; return the losses."""
    jit = kind.pop("jit")
    layers = tiny_layers(**kind)
    plan = derive(schedule, model_spec(layers), transport.size, TINY_MICRO_BATCHES)
    runner = Runner(plan, layers, transport=transport, jit=jit, seed=3)
    return [runner.step(own_columns(runner, tiny_batch(seed=step))).loss for step in range(TINY_STEPS)]


def count_calls(schedule: str, transport: Transport) -> dict[str, int]:
    """Count in Python how often each layer of this rank runs forward."""
    CALLS.clear()
    train_tiny(schedule, transport, jit=False, counts=True)
    return dict(CALLS)


def grow_a_channel(transport: Transport) -> list[bool]:
    """Send small and large messages from rank 0 to 1; say of each whether it arrived as sent."""
    messages = [[np.arange(size, dtype=np.float32)] for size in SIZES]
    messages += [[np.float64(2.5), np.zeros((0, 3), np.int8), np.array([[True], [False]])], []]
    tags = [Tag(Action(0, "SEND_F", mb), 9) for mb in range(len(messages))]
    arrived = []
    if transport.rank == 0:
        for tag, message in zip(tags, messages, strict=True):
            transport.send(1, tag, message)
    else:
        for tag, message in zip(tags, messages, strict=True):
            got = transport.receive(0, tag)
            same = [
                a.dtype == b.dtype and a.shape == b.shape and (a == b).all() for a, b in zip(got, message, strict=True)
            ]
            arrived.append(len(got) == len(message) and all(map(bool, same)))
    transport.sum(np.zeros(1, np.float32), range(transport.size))
    transport.flush()
    return arrived


def await_another(transport: Transport) -> str:
    """Let rank 1 await another message than the one that rank 0 sends; return what it says."""
    said = ""
    if transport.rank == 0:
        transport.send(1, Tag(Action(0, "SEND_F", 2), 4), [np.ones(3, np.float32)])
    else:
        try:
            transport.receive(0, Tag(Action(0, "SEND_F", 3), 4))
        except TransportError as error:
            said = str(error)
    transport.sum(np.zeros(1, np.float32), range(transport.size))
    transport.flush()
    return said


def grow_without_wires(transport: Transport) -> list[bool]:
    """Do the same by MindSpore's own messages, as on a device."""
    wires, transport._wires = transport._wires, None
    try:
        return grow_a_channel(transport)
    finally:
        transport._wires = wires


def wait_long(transport: Transport) -> dict[str, float]:
    """Let rank 1 wait for a message, a small sum and a large one of rank 0; return which share of a core each takes."""
    shares = {}
    tag = Tag(Action(0, "SEND_F", 0), 5)
    waits = {
        "message": lambda: transport.send(1, tag, []) if transport.rank == 0 else transport.receive(0, tag),
        "small sum": lambda: transport.sum(np.ones(1, np.float32), range(transport.size)),
        "large sum": lambda: transport.sum(np.ones(1 << 16, np.float32), range(transport.size)),
    }
    for name, wait in waits.items():
        for seconds in (0.0, 0.5):  # the first one opens connections
            if transport.rank == 0:
                time.sleep(seconds)
            start, busy = time.perf_counter(), time.process_time()
            wait()
            shares[name] = (time.process_time() - busy) / (time.perf_counter() - start)
    return shares


def train_writers(line: str, transport: Transport, kind: type) -> dict:
    """Train a layer whose forward writes; return losses and this rank's parameters, or what refused it."""
    layers = writer_layers(kind)
    runner = Runner(derive(line, model_spec(layers), transport.size, 4), layers, transport=transport)
    try:
        losses = [runner.step(own_columns(runner, writer_batch(seed=step))).loss for step in range(TINY_STEPS)]
    except ModelError as error:
        return {"refused": str(error)}
    evaluated = runner.evaluate(own_columns(runner, writer_batch())).loss
    parameters = {name: value.ravel().tolist() for name, value in runner.parameters().items()}
    return {"losses": [*losses, evaluated], "parameters": parameters}


def probe(transport: Transport) -> dict:
    """Run all of the above."""
    return {
        "pairs": {
            f"{schedule}, jit={jit}": train_tiny(schedule, transport, jit=jit)
            for schedule in TINY_SCHEDULES
            for jit in (True, False)
        },
        "frozen stem": train_tiny(TINY_SCHEDULES[0], transport, jit=True, frozen=("stem",)),
        "printed": train_tiny(TINY_SCHEDULES[0], transport, jit=True, prints=True),
        "calls": {schedule: count_calls(schedule, transport) for schedule in TINY_SCHEDULES},
        "grown": grow_a_channel(transport),
        "grown without wires": grow_without_wires(transport),
        "waiting": wait_long(transport),
        "awaited": await_another(transport),
        "writers": {line: train_writers(line, transport, Norm) for line in WRITER_LINES},
    }
