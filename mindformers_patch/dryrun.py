"""Compile a MindFormers job for Ascend without Ascend: every worker's step, checked against plan and each other.

python -m mindformers_patch.dryrun --config X.yaml [--ranks 0,2] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mindformers.tools.register import MindFormerConfig

from hyperparallel.algebra.topology import Topology
from hyperparallel.commands import dryrun_options
from hyperparallel.commands.dryrun import report
from hyperparallel.errors import ConfigError, HyperParallelError
from hyperparallel.training.dryrun import DryRun, dry_run
from mindformers_patch.__main__ import apply
from mindformers_patch.block import NAME, read_block

FORCED = ("context.device_target=Ascend", f"{NAME}.wires=native")
"""What a dry run changes in a configuration that was made for a CPU."""


def compile_job(
    config: str, options: Sequence[str] = (), which: Sequence[int] | None = None, keep: Path | None = None
) -> DryRun:
    """Compile the step of each worker in its own process.

    Args:
        config: YAML with a block `hyperparallel:`.
        options: `section.key=value`.
        which: workers to compile; default: all.
        keep: folder for graphs; default: a temporary one.

    Raises:
        HyperParallelError: a mistake in the configuration, or no compiler on this machine.

    Returns:
        What `hyperparallel.training.dryrun.dry_run` says.
    """
    values = MindFormerConfig(config)
    apply(values, options)
    if NAME not in values:
        raise ConfigError(f"{config} has no block {NAME}:, so there is no plan to compare graphs with")
    block, parallel = read_block(values[NAME]), values.get("parallel_config") or {}
    if block.run != "graph":
        raise ConfigError(f"{NAME}.run is {block.run}; only the order of graph is ours to check")
    topology = Topology(*(int(parallel.get(key) or 1) for key in ("pipeline_stage", "data_parallel", "model_parallel")))
    settings = values.get("recompute_config") or {}
    again = block.recompute == "all" or (block.recompute is None and settings.get("recompute"))
    recomputed = range(1000) if again else block.recompute or ()
    with tempfile.TemporaryDirectory(prefix="hyperparallel-dryrun-") as scratch:
        command = [sys.executable, "-m", "mindformers_patch.dryrun_rank", "--config", str(Path(config).absolute())]
        command += ["--output_dir", f"{scratch}/output", "--options", *FORCED, *options]
        folder = Path(keep or scratch)
        return dry_run(command, None, topology, folder, which=which, recomputed=recomputed, cwd=Path(scratch))


def main(argv: Sequence[str] | None = None) -> int:
    """Compile and report; 1 if something is wrong, 2 for a mistake in the configuration."""
    parser = argparse.ArgumentParser(prog="python -m mindformers_patch.dryrun", description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML of the job")
    parser.add_argument("--ranks", default="all", help="workers to compile, such as 0,2; default: all")
    parser.add_argument("--keep", help="folder that keeps the graphs")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="replace values")
    args = parser.parse_args(argv)
    try:
        result = compile_job(args.config, args.options, dryrun_options.workers(args.ranks), args.keep)
    except HyperParallelError as error:
        print(f"mindformers_patch: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(result)))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
