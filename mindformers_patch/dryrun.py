"""Compile a MindFormers job for Ascend without Ascend: every worker's step, checked against plan and each other.

python -m mindformers_patch.dryrun --config X.yaml [--ranks 0,2] [--level 0|1] [--keep FOLDER] [--options KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindformers.tools.register import MindFormerConfig

from hyperparallel.algebra.topology import Topology
from hyperparallel.commands import dryrun_options
from hyperparallel.commands.dryrun import report
from hyperparallel.errors import ConfigError, HyperParallelError
from hyperparallel.training.dryrun import DryRun, dry_run
from mindformers_patch.__main__ import apply
from mindformers_patch.block import NAME, Block, read_block

FORCED = ("context.device_target=Ascend", f"{NAME}.wires=native")
"""What a dry run changes in a configuration that was made for a CPU."""


@dataclass(frozen=True)
class How:
    """How to compile.

    Args:
        which: workers to compile; default: all.
        level: 0 compiles the front end; 1 the back end too, with simulated memory.
        keep: folder for graphs; default: a temporary one.
        jobs: workers compiled at a time.
        timeout: seconds allowed to one worker.
    """

    which: Sequence[int] | None = None
    level: int = 0
    keep: Path | None = None
    jobs: int = 2
    timeout: float = 600.0


def compile_job(config: Path | str, options: Sequence[str] = (), how: How | None = None) -> DryRun:
    """Compile the step of each worker in its own process.

    Args:
        config: YAML with a block `hyperparallel:`.
        options: `section.key=value`.
        how: which workers, and how.

    Raises:
        HyperParallelError: a mistake in the configuration, or no compiler on this machine.

    Returns:
        What `hyperparallel.training.dryrun.dry_run` says.
    """
    how = how or How()
    if not Path(config).is_file():
        raise ConfigError(f"--config {config}: no such file; give an existing YAML file")
    values = MindFormerConfig(str(config))
    apply(values, options)
    if NAME not in values:
        raise ConfigError(f"{config} has no block {NAME}:, so there is no plan to compare graphs with")
    block, parallel = read_block(values[NAME]), values.get("parallel_config") or {}
    if block.run != "graph":
        raise ConfigError(f"{NAME}.run is {block.run}; only the order of graph is ours to check")
    topology = Topology(*(int(parallel.get(key) or 1) for key in ("pipeline_stage", "data_parallel", "model_parallel")))
    with tempfile.TemporaryDirectory(prefix="hyperparallel-dryrun-") as scratch:
        command = [sys.executable, "-m", "mindformers_patch.dryrun_rank", str(how.level)]
        command += ["--config", str(Path(config).absolute()), "--output_dir", f"{scratch}/output"]
        command += ["--options", *FORCED, *options]
        return dry_run(
            command,
            None,
            topology,
            Path(how.keep or scratch),
            which=how.which,
            level=how.level,
            recomputed=repeated(block, values.get("recompute_config") or {}),
            timeout=how.timeout,
            cwd=Path(scratch),
            jobs=how.jobs,
        )


def repeated(block: Block, settings: dict) -> Sequence[int]:
    """List the stages whose forward may run again; as `rank_trainer.recomputed`, but before there is a plan."""
    if block.recompute == "all" or (block.recompute is None and settings.get("recompute")):
        return range(10_000)  # more than there are
    return block.recompute or ()


def main(argv: Sequence[str] | None = None) -> int:
    """Compile and report; 1 if something is wrong, 2 for a mistake in the configuration."""
    parser = argparse.ArgumentParser(prog="python -m mindformers_patch.dryrun", description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML of the job")
    parser.add_argument("--ranks", default="all", metavar="all|0,2", help="workers to compile (default: all)")
    parser.add_argument("--level", type=int, choices=(0, 1), default=0, help="0: front end; 1: back end too")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep the compiled graphs in this folder")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="workers compiled at a time (default: 2)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds allowed to one worker")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="replace values of the YAML")
    args = parser.parse_args(argv)
    try:
        how = How(dryrun_options.workers(args.ranks), args.level, args.keep, args.jobs, args.timeout)
        result = compile_job(args.config, args.options, how)
    except HyperParallelError as error:
        print(f"mindformers_patch: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(result)))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
