"""`hyperparallel dryrun`: compile a configuration for Ascend without Ascend, and check all workers."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from hyperparallel.algebra import Plan
from hyperparallel.commands import dryrun_options
from hyperparallel.cost.memory_bytes import peak_of
from hyperparallel.training.build import build_layers
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.dryrun import DryRun, dry_run
from hyperparallel.training.job import say
from hyperparallel.training.live_memory import curves
from hyperparallel.training.planning import hand_over, plan_job
from hyperparallel.training.runners import check_runner, recomputed


def run(args: argparse.Namespace) -> int:
    """Compile and report.

    Args:
        args: `config`, `overrides`, and those of `dryrun_options`.

    Raises:
        HyperParallelError: a mistake in the configuration, or no compiler on this machine.

    Returns:
        0 if all asked workers compiled and agree with the plan and each other, else 1.
    """
    which = dryrun_options.workers(args.ranks)
    overrides = [*args.overrides, *([] if args.schedule is None else [f"schedule={json.dumps(args.schedule)}"])]
    config = load_config(args.config, overrides)
    if config.run.mode == "stepwise":  # which is compiled piece by piece on the device itself
        overrides.append("run.mode=graph")
        config = load_config(args.config, overrides)
    planned = plan_job(config, build_layers(config))
    plan = planned.plan
    check_runner(config, plan, device="Ascend")
    topology = config.parallel.topology
    say(
        f"{plan.schedule} on P = {topology.ranks} x D = {topology.data_parallel} x T = {topology.tensor_parallel} "
        f"workers, M = {plan.micro_batches}; run.mode {config.run.mode}, compiled for Ascend, level {args.level}"
    )
    with tempfile.TemporaryDirectory(prefix="hyperparallel-dryrun-") as scratch:
        overrides += hand_over(planned, Path(scratch))
        result = dry_run(
            [sys.executable, "-m", "hyperparallel.training.dryrun_rank", str(args.level), args.config, *overrides],
            plan.programs,
            topology,
            Path(args.keep or scratch),
            which=which,
            level=args.level,
            recomputed=recomputed(config, plan),
            engine=config.run.mode == "annotate",
            timeout=args.timeout,
        )
        if args.level == 1 and config.run.mode == "graph":
            _predict(config, plan, result)
        say("\n".join(report(result, config.run.mode == "annotate")))
    return 0 if result.passed else 1


def _predict(config: Config, plan: Plan, result: DryRun) -> None:
    """Fill in what the memory model says; what it does not know of a layer yet is measured first."""
    topology, peaks = config.parallel.topology, list(map(peak_of, curves(config, plan, build_layers(config))))
    for one in result.workers:
        one.predicted = peaks[topology.coordinates(one.worker)[0]].bytes


def report(result: DryRun, engine: bool = False) -> list[str]:
    """Lay out what a dry run gave, a line per worker and one for all together."""
    memory = result.level == 1
    lines = [
        "worker   compile, s   operators   messages   collectives   as planned"
        + ("   peak, MB   predicted" if memory else "")
    ]
    for one in result.workers:
        if one.error:
            lines.append(f"{one.worker:6}   does not compile: {one.error}")
            continue
        peak = f"   {one.peak / 1e6:8.2f}" if one.peak is not None else ""
        if one.peak is not None and one.predicted is not None:
            peak += f"   {one.predicted / 1e6:9.2f} ({(one.predicted - one.peak) / one.peak:+.1%})"
        verdict = "no" if one.problems else "engine's" if engine else "yes"
        lines.append(
            f"{one.worker:6}   {one.seconds:10.1f}   {one.operators:9}   {one.messages:8}   {one.collectives:11}   "
            f"{verdict:>10}{peak}"
        )
        lines += [f"         {problem}" for problem in one.problems]
    if result.together is None:
        lines.append("not checked against each other: that takes all workers, compiled")
    elif result.together:
        lines += ["all workers together:", *(f"  {problem}" for problem in result.together)]
    else:
        streams = "; the kernels of every stream reach their end" if memory else ""
        lines.append(f"all workers together: every message meets its partner, no deadlock under rendezvous{streams}")
    return lines
