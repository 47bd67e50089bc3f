"""Run a MindFormers configuration, with or without a block `hyperparallel:`, alone or under `msrun`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence

import yaml
from hyperparallel.errors import ConfigError, HyperParallelError
from mindformers_patch.versions import check_versions

FLAGS = ("run_mode", "use_parallel", "output_dir", "load_checkpoint", "resume_training", "seed")
"""Flags that replace a value of the same name."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; the flags are those that MindFormers' users know."""
    parser = argparse.ArgumentParser(prog="python -m mindformers_patch", description=__doc__)
    parser.add_argument("--config", required=True, help="YAML of the job")
    parser.add_argument("--register_path", help="folder with modules that `auto_register` in the YAML names")
    parser.add_argument("--run_mode", choices=["train", "finetune"], help="replaces run_mode")
    parser.add_argument("--use_parallel", type=_flag, help="replaces use_parallel: True or False")
    parser.add_argument("--output_dir", help="replaces output_dir")
    parser.add_argument("--load_checkpoint", help="replaces load_checkpoint")
    parser.add_argument("--resume_training", type=_flag, help="replaces resume_training: True or False")
    parser.add_argument("--seed", type=int, help="replaces seed")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="replace any other values")
    return parser.parse_args(argv)


def apply(config: MutableMapping[str, object], options: Sequence[str]) -> None:
    """Put values given as text into a configuration.

    Args:
        config: changed in place.
        options: `section.key=value`, each value in YAML notation.

    Raises:
        ConfigError: an option is not of that form or has no value, or a part of its key is no section.
    """
    for option in options:
        key, sign, text = option.partition("=")
        if not sign or not key:
            raise ConfigError(f"--options {option!r} is not of the form section.key=value")
        if not text.strip():
            raise ConfigError(f"--options {option!r} has no value after the =; write {key}=null if none is meant")
        value = yaml.safe_load(text)  # as MindFormers reads its files, which is YAML 1.1
        put(config, key, type(config)(**value) if isinstance(value, dict) else value)


def put(config: MutableMapping[str, object], key: str, value: object) -> None:
    """Put a value into a configuration.

    Args:
        config: changed in place.
        key: dotted, `runner_config.epochs`.
        value: what it becomes.

    Raises:
        ConfigError: a part of the key is a value, not a section.
    """
    *sections, last = key.split(".")
    for name in sections:
        if not isinstance(config.get(name), MutableMapping):
            raise ConfigError(f"--options {key}: {name!r} is no section of the configuration")
        config = config[name]
    config[last] = value


def run(args: argparse.Namespace) -> None:
    """Train.

    Args:
        args: from `parse`.

    Raises:
        HyperParallelError: the block does not fit; before anything is built.
    """
    check_versions()
    if not os.path.isfile(args.config):
        raise ConfigError(f"--config {args.config}: no such file; give an existing YAML file")
    if args.register_path:
        folder = os.path.realpath(args.register_path)
        os.environ["REGISTER_PATH"] = folder
        sys.path.append(folder)
    from mindformers import Trainer
    from mindformers.core.context import build_context
    from mindformers.tools.register import MindFormerConfig

    import mindformers_patch.register  # noqa: F401 - makes our classes known by name
    from mindformers_patch.prepare import prepare

    config = MindFormerConfig(os.path.realpath(args.config))
    for name in FLAGS:
        if getattr(args, name) is not None:
            put(config, name, getattr(args, name))
    apply(config, args.options)
    prepare(config)
    os.environ.setdefault("RUN_MODE", config.run_mode or "train")
    build_context(config)
    trainer = Trainer(config)
    if config.run_mode == "finetune":
        trainer.finetune()
    else:
        trainer.train()


def main(argv: Sequence[str] | None = None) -> int:
    """Run; print one sentence for a mistake in the configuration, and a traceback for anything else."""
    try:
        run(parse(sys.argv[1:] if argv is None else argv))
    except HyperParallelError as error:
        print(f"mindformers_patch: {error}", file=sys.stderr)
        return 2
    return 0


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in ("true", "1")


if __name__ == "__main__":
    sys.exit(main())
