"""`hyperparallel profile`: measure what every layer costs on the device of this machine, and write it to a file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hyperparallel.commands.arguments import UsageError
from hyperparallel.cost.measured import MeasuredCosts, read_measured, write_measured
from hyperparallel.errors import ConfigError
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.job import new_run_folder, run_folder, run_job, say
from hyperparallel.training.launch import is_worker

_RESULT = "costs.json"


def run(args: argparse.Namespace) -> int:
    """Measure: as a rank where `msrun` started this process, else start the ranks.

    Two ranks are enough: every rank measures every stage, and messages need a pair.

    Args:
        args: `config`, `overrides`, and `out`, the file to write.

    Raises:
        HyperParallelError: a mistake in the configuration, or a rank that failed.

    Returns:
        0.
    """
    if args.out is None:
        raise UsageError(f"profile needs --out; for example\n  hyperparallel profile {args.config} --out costs.json")
    config = load_config(args.config, args.overrides)
    if config.parallel.tensor_parallel > 1:
        raise ConfigError("profile measures stages of one worker; set parallel.tensor_parallel to 1")
    if is_worker():
        _work(config)
        return 0
    out = Path(args.out)
    if not os.path.isdir(out.parent):
        raise ConfigError(f"--out {args.out}: there is no folder {out.parent}; make it or give another place")
    from hyperparallel.training.runners import check

    check(config)
    folder = new_run_folder(config.run.out)
    workers = min(2, config.parallel.ranks)
    say(f"measuring on {workers} rank{'s' if workers > 1 else ''}; run folder {folder}")
    arguments = ["-m", "hyperparallel", "profile", args.config, "--out", args.out, *args.overrides]
    run_job(arguments, workers, folder, "progress.jsonl", lambda line: say(line["doing"] + " ..."))
    measured = read_measured(folder / _RESULT)
    write_measured(out, measured)
    say("\n" + report(measured))
    say(f"\nwrote {out}; use it with cost.measured={out}")
    return 0


def _work(config: Config) -> None:
    from hyperparallel.cells.transport import Transport
    from hyperparallel.training.metrics import MetricsFile
    from hyperparallel.training.profile import profile

    transport = Transport.start()
    folder = run_folder(config.run.out) if transport.rank == 0 else None
    with MetricsFile(folder / "progress.jsonl" if folder else None) as progress:
        measured = profile(config, transport, lambda doing: progress.write({"doing": doing}))
    if folder:
        write_measured(folder / _RESULT, measured)
    transport.leave()


def report(measured: MeasuredCosts) -> str:
    """Lay the measured times out, and how well layers predict stages.

    Args:
        measured: the file's content.

    Returns:
        Lines of text.
    """
    largest = {key: max(size[key] for size in measured.sizes) for key in ("images", "tokens")}
    lines = [
        f"{measured.device}; micro-batches of up to {largest['images']} images and {largest['tokens']} tokens",
        f"a message takes {measured.alpha * 1e3:.2f} ms + {measured.beta * 2**20 * 1e3:.2f} ms per MiB",
        f"a stage saves {measured.call['F'] * 1e3:.2f} ms (F) and {measured.call['B'] * 1e3:.2f} ms (B) for every "
        "layer after its first",
        "",
        f"{'ms':20} {'F':>8} {'per image':>10} {'per 1000 tokens':>16} {'off':>7}   "
        f"{'B':>8} {'per image':>10} {'per 1000 tokens':>16} {'off':>7}",
    ]
    for layer in measured.layers:
        columns = []
        for one in (layer.forward, layer.backward):
            if one is not None:
                columns.append(
                    f"{one.base * 1e3:8.3f} {one.image * 1e3:10.4f} {one.token * 1e6:16.3f} {one.error:7.1%}"
                )
        lines.append(f"{layer.name:20} " + "   ".join(columns))
    lines += ["", "stage: predicted from its layers, off by at most, and at a size that was not fitted"]
    for stage in measured.stages:
        first, last = stage.layers
        names = f"{measured.layers[first].name} .. {measured.layers[last - 1].name}"
        lines.append(f"{names:40} {stage.kind}   {stage.error:+7.1%}   {stage.held_out:+7.1%}")
    return "\n".join(lines)
