"""`hyperparallel train`: start the ranks, show their progress, print what was reached."""

from __future__ import annotations

import argparse
import json

from hyperparallel.cells.transport import Transport
from hyperparallel.planner import Planned
from hyperparallel.training.build import build_feed
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.job import has_starter, new_run_folder, run_folder, run_job, say
from hyperparallel.training.launch import is_worker
from hyperparallel.training.planning import hand_over
from hyperparallel.training.progress import Progress
from hyperparallel.training.runners import check
from hyperparallel.training.trainer import train


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
    planned = check(config)
    if config.evaluation.samples:
        build_feed(config, "held_out")
    _start(args, config, planned)
    return 0


def _work(config: Config) -> None:
    transport = Transport.start()
    folder = run_folder(config.run.out) if transport.rank == 0 else None
    # The starter draws the bar from the metrics; by hand under msrun, rank 0 draws it into its own log.
    progress = Progress(config.training.steps) if transport.rank == 0 and not has_starter() else None
    try:
        train(config, transport, folder, progress.report if progress else None)
    finally:
        if progress:  # ends its line, so that an error starts a new one
            progress.close()


def _start(args: argparse.Namespace, config: Config, planned: Planned) -> None:
    folder = new_run_folder(config.run.out)
    workers = config.parallel.topology.workers
    say(f"{config.schedule} on {workers} ranks; run folder {folder}")
    if planned.certificate is not None:
        say(f"predicted step {planned.certificate.step_time:.1f} ms for the mean micro-batch, {planned.certificate}")
    progress = Progress(config.training.steps)
    arguments = ["-m", "hyperparallel", "train", args.config, *args.overrides, *hand_over(planned, folder)]
    try:
        run_job(arguments, workers, folder, "metrics.jsonl", progress.report)
    finally:
        progress.close()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    say(
        f"loss {summary['first_loss']:.4f} -> {summary['last_loss']:.4f}, "
        f"median step {summary['step_time'] * 1e3:.0f} ms, {summary['tokens_per_s']:.0f} tokens/s"
    )
    if "reorder_gain" in summary:
        say(f"reordering the micro-batches saves {summary['reorder_gain']:.1%} of a step, as predicted")
    if "exact" in summary:
        say(f"held-out exact reading {summary['exact']:.1%} of {summary['samples']:.0f} samples")
