"""`hyperparallel bench`: measure the configured schedule against both inline forms, beside the prediction.

With `--emulate` schedule lines on emulated devices instead: `emulate.py`.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from hyperparallel.commands import emulate
from hyperparallel.commands.arguments import UsageError
from hyperparallel.errors import ConfigError
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.job import new_run_folder, run_folder, run_job, say
from hyperparallel.training.launch import is_worker


def run(args: argparse.Namespace) -> int:
    """Compare schedules on this machine: as a rank where `msrun` started this process, else start the ranks.

    Args:
        args: `config`, path of the YAML file, and `overrides`; or `emulate` with its options.

    Raises:
        HyperParallelError: a mistake in the configuration, or a rank that failed.

    Returns:
        0.
    """
    if args.emulate:
        if args.config is not None:
            raise UsageError(f"bench takes a CONFIG.yaml or --emulate, but got {args.config!r} together with --emulate")
        return emulate.run(args)
    if options := emulate.given(args):
        raise UsageError(f"{', '.join(options)} of bench needs --emulate; for example\n  {emulate.EXAMPLE}")
    config = load_config(args.config, args.overrides)
    if config.parallel.data_parallel > 1:
        raise ConfigError("bench compares pipelines of one replica; set parallel.data_parallel to 1")
    if config.parallel.tensor_parallel > 1:
        raise ConfigError("bench compares pipelines of one worker a stage; set parallel.tensor_parallel to 1")
    if is_worker():
        _work(config)
        return 0
    from hyperparallel.training.runners import check

    check(config)
    folder = new_run_folder(config.run.out)
    say(f"comparing on {config.parallel.ranks} ranks; run folder {folder}")
    arguments = ["-m", "hyperparallel", "bench", args.config, *args.overrides]
    run_job(arguments, config.parallel.ranks, folder, "progress.jsonl", lambda line: say(line["doing"] + " ..."))
    say("")
    say(report_bench(json.loads((folder / "bench.json").read_text(encoding="utf-8"))))
    return 0


def _work(config: Config) -> None:
    _pin()
    from hyperparallel.cells.transport import Transport
    from hyperparallel.training.bench import bench
    from hyperparallel.training.metrics import MetricsFile, write_json

    transport = Transport.start()
    folder = run_folder(config.run.out) if transport.rank == 0 else None
    with MetricsFile(folder / "progress.jsonl" if folder else None) as progress:
        result = bench(config, transport, lambda doing: progress.write({"doing": doing}))
    if folder:
        write_json(folder / "bench.json", result)
    transport.leave()


def _pin() -> None:
    """Keep this rank on one core, or ranks disturb each other and the comparison means nothing."""
    rank = int(os.environ.get("RANK_ID", "0") or 0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def report_bench(result: dict[str, Any]) -> str:
    """Lay the result out as a table.

    Args:
        result: what `hyperparallel.training.bench.bench` returned.

    Returns:
        Lines of text.
    """
    rows = result["rows"]
    lines = [
        f"machine  {result['machine']}",
        f"P = {result['ranks']}, M = {result['micro_batches']}; images per micro-batch, by batch: "
        + "; ".join(" ".join(map(str, images)) for images in result["images"]),
        f"a message takes {result['alpha'] * 1e3:.1f} ms + {result['beta'] * 2**20 * 1e3:.1f} ms per MiB",
        "",
        f"{'':18} {'step, ms: measured':24} {'predicted':>10} {'off':>7}   "
        f"{'time / configured: measured':29} {'predicted':>9} {'off':>7}",
    ]
    for row in rows:
        measured, predicted = (sum(row[key]) / len(row[key]) * 1e3 for key in ("measured", "predicted"))
        spread = [sum(bound[end] for bound in row["spread"]) / len(row["spread"]) * 1e3 for end in (0, 1)]
        quartiles = f"{row['ratio']:.3f} ({row['ratio_spread'][0]:.3f} - {row['ratio_spread'][1]:.3f})"
        lines.append(
            f"{row['label']:18} {f'{measured:.0f} ({spread[0]:.0f} - {spread[1]:.0f})':24} {predicted:10.0f} "
            f"{measured / predicted - 1:+7.1%}   {quartiles:29} {row['predicted_ratio']:9.3f} "
            f"{row['ratio'] / row['predicted_ratio'] - 1:+7.1%}"
        )
    lines += [
        "",
        "steps: median per batch (min - max), mean over batches; ratios: median of steps in turn (quartiles)",
        "",
    ]
    lines += [f"{row['label']:18} {row['schedule']}, layers per stage {row['slabs']}" for row in rows]
    return "\n".join(lines)
