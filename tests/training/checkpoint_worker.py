"""Save and restore on the workers of one job, and write what each saw; started by `test_checkpoint_jobs.py`."""

import json
import resource
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "cells"))

from cells_case import GPIPE, INLINE, SEED, SETTINGS, TRANSPOSE, Case, batch_of, layers_of, plan_of

from hyperparallel import Runner, Transport
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.state import state_of
from hyperparallel.errors import CheckpointError
from hyperparallel.training.checkpoint import Checkpoints, load_weights, restore

SAVED, ENDED = 3, 6  # steps
FACTS = {"seed": SEED, "samples": 24, "loss_scale": [1.0, 0]}


def runner_of(schedule: str, transport: Transport, ranks: int, replicas: int = 1, shards: int = 1) -> Runner:
    """Build a runner of the tiny multimodal model."""
    case = Case(schedule, ranks, data_parallel=replicas, micro_batches=4 // replicas)
    layers = layers_of(case, transport.tensor_parallel(Topology(ranks, replicas, shards)))
    return Runner(
        plan_of(case, layers),
        layers,
        transport=transport,
        data_parallel=replicas,
        tensor_parallel=shards,
        optimizer=SETTINGS,
        seed=SEED + shards * 10,  # other weights than those that are restored, where no job begins anew
    )


def losses(runner: Runner, first: int, last: int) -> list[float]:
    """Train some steps."""
    case = Case("", 1, data_parallel=runner.topology.data_parallel, micro_batches=runner.plan.micro_batches)
    return [runner.step(batch_of(step, case, runner.replica)).loss for step in range(first, last)]


def state(runner: Runner) -> dict[str, np.ndarray]:
    """Return all that a worker holds of the state, every copy, by name."""
    return {
        f"{one.name}:{index}": copy.asnumpy().copy()
        for one in state_of(runner)
        for index, copy in enumerate(one.copies)
    }


def again(runner: Runner, transport: Transport, out: Path, facts: dict) -> Path:
    """Train, save, train on; go back and train on again, in the same layout."""
    facts["before"] = losses(runner, 0, SAVED)
    saved = Checkpoints(out, 2, transport).save(runner, FACTS)
    facts["on"] = losses(runner, SAVED, ENDED)
    ended = state(runner)
    facts["restored"] = restore(out, runner)
    facts["steps"] = (runner.step_number, runner.optimizer.updates)
    facts["again"] = losses(runner, SAVED, ENDED)
    facts["equal"] = equal(ended, state(runner))
    return saved


def equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    """Compare to the bit."""
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def full_disk(runner: Runner, transport: Transport, out: Path) -> str:
    """Let worker 1 have no room for a file; return what this one is told."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if transport.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        Checkpoints(out, 2, transport, last=out).save(runner, FACTS)
    except CheckpointError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return ""


def refused(path: Path, runner: Runner) -> str:
    """Return what a worker is told of weights that do not fit."""
    try:
        load_weights(path, runner)
    except CheckpointError as error:
        return str(error)
    return ""


def four(transport: Transport, out: Path, facts: dict) -> None:
    """P = 4; P = 2 with D = 2; P = 2 with T = 2."""
    runner = runner_of(TRANSPOSE, transport, 4)
    saved = again(runner, transport, out / "four", facts)
    facts["full"] = full_disk(runner, transport, out / "four")
    cut = runner_of(TRANSPOSE, transport, 2, shards=2)
    restore(saved, cut)
    parts = Checkpoints(out / "cut", 1, transport).save(cut, FACTS)
    facts["refused"] = refused(out / "embed.safetensors", runner)
    restore(saved, runner)
    whole = state(runner)
    load_weights(out / "zeros.safetensors", runner)
    facts["cleared"] = not any(value.any() for name, value in state(runner).items() if "optimizer" not in name)
    restore(parts, runner)
    facts["joined"] = equal(whole, state(runner))
    replicas = runner_of(GPIPE, transport, 2, replicas=2)
    restore(saved, replicas)
    facts["other"] = losses(replicas, SAVED, ENDED)


def two(transport: Transport, out: Path, facts: dict) -> None:
    """P = 2 from the checkpoint of P = 4, then from its own; both times a runner that has not run yet."""
    first = runner_of(INLINE, transport, 2)
    restore(out / "four", first)
    Checkpoints(out / "two", 1, transport).save(first, FACTS)
    facts["other"] = losses(first, SAVED, ENDED)
    fresh = runner_of(INLINE, transport, 2)
    restore(out / "two", fresh)
    facts["again"] = losses(fresh, SAVED, ENDED)
    facts["equal"] = equal(state(first), state(fresh))


def main() -> None:
    """Run what this number of workers is for."""
    transport, out, facts = Transport.start(), Path(sys.argv[1]), {}
    (four if transport.size == 4 else two)(transport, out, facts)
    (out / f"{transport.size}.{transport.rank}.json").write_text(json.dumps(facts))
    transport.leave()


if __name__ == "__main__":
    main()
