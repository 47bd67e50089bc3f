"""The files that are made wrong, and the command that reads each of them: one right job for every kind."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_mutants import Obj, mutate, to_tree

from hyperparallel.cli import main
from hyperparallel.cost.measured import Fit, MeasuredCosts, MeasuredLayer, write_measured
from hyperparallel.errors import HyperParallelError
from hyperparallel.json_file import SEAL, seal
from hyperparallel.tensors import Shard, slice_parameter
from hyperparallel.training.checkpoint_files import write_index, write_tensors
from hyperparallel.training.checkpoint_index import Cut, Entry, Facts, Index
from hyperparallel.training.stored import checksum

Command = Callable[[Path], int]
"""From the folder of a job, with one file of it changed, to the exit code."""


@dataclass(frozen=True)
class Job:
    """A right job: its files, which of them is changed, and what reads it.

    Args:
        files: name -> content.
        changed: names of those that are made wrong.
        command: run in the job's folder.
        sealed: whether the file has a checksum over itself.
    """

    files: dict[str, bytes]
    changed: tuple[str, ...]
    command: Command
    sealed: bool = False


@dataclass(frozen=True)
class Mutant:
    """A job with one file changed.

    Args:
        job: the right one.
        name: of the changed file.
        content: what it now is.
        resealed: whether its checksum was put right.
    """

    job: Job
    name: str
    content: bytes
    resealed: bool

    def believed_wrongly(self) -> bool:
        """Tell whether a change that a checksum shows is in it, for a mutant that was taken as right."""
        if not self.job.sealed or self.resealed:
            return False
        if not self.name.endswith(".json"):
            return self.content != self.job.files[self.name]
        return json.loads(self.content) != json.loads(self.job.files[self.name])


def make_mutant(jobs: list[Job], kind: str, seed: int) -> Mutant:
    """Change a file of a kind; the same seed gives the same one.

    Args:
        jobs: of `KINDS`.
        kind: its name.
        seed: a number.
    """
    random_ = random.Random(f"{kind} {seed}")
    job = random_.choice(jobs)
    name = random_.choice(job.changed)
    resealed = job.sealed and random_.random() < 0.6
    content = job.files[name]
    if name.endswith(".safetensors"):
        at = random_.randrange(len(content))
        return Mutant(job, name, content[:at] + random_.randbytes(1) + content[at + 1 :], False)
    finish = _sealed_again if resealed else lambda tree: tree
    return Mutant(job, name, mutate(content, f"{kind} {seed}", name.endswith(".yaml"), finish), resealed)


def _sealed_again(tree: Any) -> Any:
    """Put the checksum of a changed tree right, if it is still something that can have one."""
    try:
        values = _values(tree)
        right = seal(values)[SEAL]
    except (TypeError, ValueError, AttributeError, RecursionError):
        return tree
    return Obj([key, right if key == SEAL else value] for key, value in tree)


def _values(tree: Any) -> Any:
    """Make of pairs what a reader makes of them; the last of a key that is there twice counts."""
    if isinstance(tree, Obj):
        return {str(key): _values(value) for key, value in tree}
    return [_values(value) for value in tree] if isinstance(tree, list) else tree


CONFIG = """\
schedule: "{line}"
parallel: {{ranks: 2, data_parallel: 1, tensor_parallel: 1}}
model:
  image_token: 3
  vision: {{width: 16, depth: 1, heads: 2, ffn: 32}}
  llm: {{vocab_size: 16, width: 24, depth: 2, heads: 4, kv_heads: 2, ffn: 32, max_length: 8, trainable: true}}
data: {{max_images: 1}}
training:
  steps: 30
  batch_size: 8
  micro_batches: 4
  warmup_steps: 1
  lr: 0.001
  betas: [0.9, 0.99]
cost: {{gflops: 20.0, message_ms: 0.1}}
planner: {{engine: list, seed: 0, memory_limit: 16 encodes}}
run: {{mode: stepwise, dtype: float32, jit: true, out: runs}}
"""
FILL = "transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"
WARMUP = "transpose(vision, owner=balanced) >> 1f1b(llm)"


def _plan(folder: Path, *more: str) -> int:
    return main(["plan", str(folder / "config.yaml"), *(one.format(folder=folder) for one in more)])


def _plan_jobs(folder: Path) -> list[Job]:
    jobs = []
    for line in (FILL, WARMUP):
        (folder / "config.yaml").write_text(CONFIG.format(line=line))
        assert _plan(folder, "--out", "{folder}/plan.json") == 0
        files = {name: (folder / name).read_bytes() for name in ("config.yaml", "plan.json")}
        jobs.append(Job(files, ("plan.json",), partial(_with, ("planner.file={folder}/plan.json",)), sealed=True))
    return jobs


def _with(more: tuple[str, ...], folder: Path) -> int:
    return _plan(folder, *more)


def _yaml_jobs(folder: Path) -> list[Job]:
    samples = "".join(
        json.dumps({"prompt": f"reads {word}", "response": word}) + "\n" for word in ("one", "two", "six")
    )
    source = (
        "data: {source: files, path: PATH, image_size: 8, channels: 1, max_images: 1, max_tokens: 8, tokenizer: words}"
    )
    files = CONFIG.format(line=FILL).replace("data: {max_images: 1}", source)
    paths = {"config.yaml": files.replace("PATH", "train.jsonl").encode(), "train.jsonl": samples.encode()}
    return [
        Job({"config.yaml": CONFIG.format(line=FILL).encode()}, ("config.yaml",), _plan),
        Job({"config.yaml": CONFIG.format(line="1f1b(vision+llm, slabs=balanced)").encode()}, ("config.yaml",), _plan),
        Job(paths, ("config.yaml",), _plan),
    ]


def _device_jobs(folder: Path) -> list[Job]:
    devices = Path(__file__).parents[2] / "yaml" / "devices"
    config = CONFIG.format(line=WARMUP).replace("gflops: 20.0, message_ms: 0.1", "device: device.yaml").encode()
    return [
        Job(
            {"config.yaml": config, "device.yaml": (devices / f"{name}.yaml").read_bytes()},
            ("device.yaml",),
            partial(_with, ("cost.device={folder}/device.yaml",)),
        )
        for name in ("cpu", "ascend_910b")
    ]


def _costs_jobs(folder: Path) -> list[Job]:
    from hyperparallel.training.build import build_layers
    from hyperparallel.training.config import load_config
    from hyperparallel.training.costs import conditions, identities

    text = CONFIG.format(line=WARMUP).replace("gflops: 20.0, message_ms: 0.1", "measured: costs.json")
    (folder / "config.yaml").write_text(text)
    config = load_config(folder / "config.yaml")
    fit = Fit(base=1e-3, image=1e-4, token=1e-5, error=0.01)
    layers = [
        MeasuredLayer(name=name, trainable=trainable, work=work, forward=fit, backward=fit)
        for name, trainable, work in identities(build_layers(config))
    ]
    costs = MeasuredCosts(
        device="CPU",
        conditions=conditions(config),
        sizes=[{"images": 1, "samples": 2, "tokens": 16}, {"images": 2, "samples": 2, "tokens": 16}],
        alpha=1e-4,
        beta=1e-9,
        call={"F": 1e-5, "B": 1e-5},
        layers=layers,
        stages=[{"layers": (0, 2), "kind": "F", "error": 0.1, "held_out": -0.1}],
    )
    write_measured(folder / "costs.json", costs)
    files = {"config.yaml": text.encode(), "costs.json": (folder / "costs.json").read_bytes()}
    return [Job(files, ("costs.json",), partial(_with, ("cost.measured={folder}/costs.json",)))]


def _checkpoint_jobs(folder: Path) -> list[Job]:
    from hyperparallel.training.build import data_facts
    from hyperparallel.training.config import load_config

    random_ = np.random.default_rng(0)
    whole = {"embed.weight": (4, 3), "block.matrix": (6, 2), "optimizer.first.embed.weight": (4, 3)}
    arrays = {name: random_.standard_normal(shape).astype(np.float32) for name, shape in whole.items()}
    cut = Shard(0, (4, 2))
    parts = [slice_parameter(arrays["block.matrix"], cut, index, 2) for index in range(2)]
    names = ["worker_00.safetensors", "worker_01.safetensors"]
    inside, config = "run/checkpoints/step_000012", CONFIG.format(line="1f1b(vision+llm)").encode()
    (folder / "config.yaml").write_bytes(config)
    (folder / inside).mkdir(parents=True)
    write_tensors(folder / inside / names[0], {**arrays, "block.matrix": parts[0]}, {})
    write_tensors(folder / inside / names[1], {"block.matrix": parts[1]}, {})
    entries = {
        name: Entry(shape=value.shape, files=(names[0],), crc32=(checksum(value),)) for name, value in arrays.items()
    }
    sums = tuple(map(checksum, parts))
    entries["block.matrix"] = Entry(shape=(6, 2), files=names, crc32=sums, cut=Cut(axis=0, blocks=cut.blocks))
    index = Index(
        step=12,
        updates=11,
        schedule="1f1b(vision+llm)",
        ranks=2,
        data_parallel=1,
        tensor_parallel=2,
        facts=Facts(seed=0, samples=96, loss_scale=(1.0, 0), data=data_facts(load_config(folder / "config.yaml"))),
        tied={"head.weight": "embed.weight"},
        bytes={name: (folder / inside / name).stat().st_size for name in names},
        tensors=entries,
    )
    write_index(folder / inside, index)
    files = {f"{inside}/{name}": (folder / inside / name).read_bytes() for name in (*names, "checkpoint.json")}
    files["config.yaml"] = config
    index, tensors = f"{inside}/checkpoint.json", f"{inside}/{names[0]}"
    # Going on reads tensors only on the ranks.
    changed = {_export: (index, index, index, tensors), _resume: (index,)}
    return [Job(files, names, command, sealed=True) for command, names in changed.items()]


def _export(folder: Path) -> int:
    return main(["export", "--optimizer", "--force", str(folder / "run"), str(folder / "out.safetensors")])


def _resume(folder: Path) -> int:
    """Do what `train ... resume=RUN` does before it starts a rank."""
    from hyperparallel.training.config import load_config
    from hyperparallel.training.keeper import check_start

    try:
        check_start(load_config(folder / "config.yaml", [f"resume={folder / 'run'}"]))
    except HyperParallelError as error:
        print(f"hyperparallel: {error}", file=sys.stderr)
        return 2
    return 0


KINDS: dict[str, Callable[[Path], list[Job]]] = {
    "plan": _plan_jobs,
    "yaml": _yaml_jobs,
    "checkpoint": _checkpoint_jobs,
    "costs": _costs_jobs,
    "device": _device_jobs,
}
"""By kind: makes its right jobs, in an empty folder."""

__all__ = ["KINDS", "Job", "Mutant", "make_mutant", "to_tree"]
