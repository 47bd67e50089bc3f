"""`hyperparallel train`: start the ranks, show their progress, print what was reached."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hyperparallel.cells.transport import Transport
from hyperparallel.errors import CheckpointError
from hyperparallel.planner import Planned
from hyperparallel.training.checkpoint_files import find_checkpoint
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.evaluation import held_out_feed
from hyperparallel.training.job import JobError, has_starter, new_run_folder, run_folder, run_job, say
from hyperparallel.training.keeper import check_start
from hyperparallel.training.launch import is_worker
from hyperparallel.training.planning import hand_over
from hyperparallel.training.progress import Progress, loss_text
from hyperparallel.training.runners import check
from hyperparallel.training.trainer import train
from hyperparallel.training.untrained import warning


def run(args: argparse.Namespace) -> int:
    """Train a configuration: as a rank where `msrun` started this process, else start the ranks.

    Args:
        args: `config`, path of the YAML file, and `overrides`.

    Raises:
        HyperParallelError: a mistake in the configuration, or a rank that failed.

    Returns:
        0.
    """
    config = load_config(args.config, args.overrides)
    if is_worker():
        _work(config)
        return 0
    check_start(config)
    planned = check(config)
    held_out_feed(config)
    _start(args, config, planned)
    return 0


def _work(config: Config) -> None:
    transport = Transport.start(config.run.timeout_s)
    folder = run_folder(config.run.out) if transport.rank == 0 else None
    # The starter draws the bar from the metrics; by hand under msrun, rank 0 draws it into its own log.
    progress = Progress(config.training.steps) if transport.rank == 0 and not has_starter() else None
    try:
        train(config, transport, folder, progress.report if progress else None)
    finally:
        if progress:  # ends its line, so that an error starts a new one
            progress.close()
    transport.leave()


def _start(args: argparse.Namespace, config: Config, planned: Planned) -> None:
    folder = new_run_folder(config.run.out)
    workers = config.parallel.topology.workers
    say(f"{config.schedule} on {workers} ranks; run folder {folder}")
    if planned.certificate is not None:
        say(f"predicted step {planned.certificate.step_time:.1f} ms for the mean micro-batch, {planned.certificate}")
    progress = Progress(config.training.steps)
    arguments = ["-m", "hyperparallel", "train", args.config, *args.overrides, *hand_over(planned, folder)]
    try:
        run_job(arguments, workers, folder, "metrics.jsonl", progress.report, stop_s=config.run.timeout_s)
    except JobError as error:
        raise JobError(f"{error}{_way_on(folder)}") from None
    finally:
        progress.close()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    say(
        f"loss {loss_text(summary['first_loss'])} -> {loss_text(summary['last_loss'])}, "
        f"median step {summary['step_time'] * 1e3:.0f} ms, {summary['tokens_per_s']:.0f} tokens/s"
    )
    if summary["stopped"]:
        say(f"stopped by SIGTERM after {summary['steps']} steps of this run; go on with resume={folder}")
    if "checkpoint" in summary:
        say(f"checkpoint {_as_given(Path(summary['checkpoint']), folder)}")
    if summary.get("untrained"):
        say(warning(summary["untrained"], summary["steps"]))
    if "reorder_gain" in summary:
        say(f"reordering the micro-batches saves {summary['reorder_gain']:.1%} of a step, as predicted")
    if "exact" in summary:
        asked = config.evaluation.samples
        fewer = f" (of {asked} asked for: no others can be used)" if summary["samples"] < asked else ""
        say(f"held-out exact reading {summary['exact']:.1%} of {summary['samples']:.0f} samples{fewer}")


def _as_given(path: Path, folder: Path) -> Path:
    """Write what lies in the run folder as its user writes the folder; a checkpoint of an earlier run is elsewhere."""
    own = folder.absolute()
    return folder / path.relative_to(own) if path.is_relative_to(own) else path


def _way_on(folder: Path) -> str:
    """Say from where a run that failed can go on, if it can."""
    try:
        return f"; {find_checkpoint(folder).name} is whole, go on with resume={folder}"
    except CheckpointError:
        return ""
