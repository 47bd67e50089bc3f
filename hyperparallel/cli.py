"""The command `hyperparallel`: find the command, run it, turn what went wrong into a sentence and an exit code.

Exit codes: 0 done; 1 `check` found the table wrong; 2 a mistake in the command line or in what it names;
130 interrupted; 141 the reader of the output went away. Programming errors keep their traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.commands import check, dryrun_options, emulate, export, plan, plot
from hyperparallel.commands.arguments import Parser, UsageError, file_path
from hyperparallel.errors import HyperParallelError
from hyperparallel.paths import print_any_path

_DESCRIPTION = "One schedule line places, checks, predicts and runs multimodal training on MindSpore."
_EPILOG = f"""\
examples:
  {plan.EXAMPLE}
  {check.EXAMPLE}
  hyperparallel train CONFIG.yaml training.steps=20

'hyperparallel COMMAND --help' explains a command.
"""
_WITH_CONFIG = {
    "train": "train the model of a configuration",
    "bench": "measure a configuration, or emulated devices: predicted against real step time",
    "profile": "measure what every layer of a configuration costs on this machine, for cost.measured",
    "dryrun": "compile a configuration for Ascend on this machine, and check all workers against the plan",
}
COMMANDS = ("plan", "check", "plot", "export", *_WITH_CONFIG)


def main(argv: list[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after the program's name; by default those of this process.

    Returns:
        The exit code, see above.
    """
    print_any_path()
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except HyperParallelError as error:
        print(f"hyperparallel: {'; '.join([str(error), *getattr(error, '__notes__', [])])}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("hyperparallel: interrupted", file=sys.stderr)
        return 130


def _dispatch(argv: Sequence[str]) -> int:
    """Parse the words and run the command they name."""
    parser, commands = _parsers()
    word = next((word for word in argv if not word.startswith("-")), None)
    if word is not None and word not in COMMANDS:
        raise UsageError(f"unknown command {word!r}; expected {', '.join(COMMANDS)}{did_you_mean(word, COMMANDS)}")
    try:
        args, rest = parser.parse_known_args(argv)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)
    unknown = next((word for word in rest if word.startswith("-")), None)
    if unknown is not None:
        commands.get(args.command, parser).refuse_unknown(unknown)
    if args.version:
        print(f"hyperparallel {_version()}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    _add_positionals(args, rest)
    return _run(args)


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    """Build the parser and those of the commands, without importing what trains."""
    parser = Parser(prog="hyperparallel", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    choices = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands = {}
    for module in (plan, check, plot, export):
        name = module.__name__.rpartition(".")[2]
        commands[name] = choices.add_parser(
            name, help=module.SUMMARY, description=module.SUMMARY.capitalize() + ".", epilog=module.EPILOG
        )
        module.add_arguments(commands[name])
    for name, summary in _WITH_CONFIG.items():
        commands[name] = choices.add_parser(name, help=summary, description=summary.capitalize() + ".")
        commands[name].add_argument("config", nargs="?", metavar="CONFIG.yaml", help="the configuration")
        commands[name].add_argument(
            "overrides", nargs="*", metavar="section.key=value", help="values to change in CONFIG.yaml"
        )
    dryrun_options.add_arguments(commands["dryrun"])
    commands["profile"].add_argument("--out", type=file_path, metavar="FILE", help="JSON file to write")
    emulate.add_arguments(commands["bench"])
    commands["bench"].epilog = emulate.EPILOG
    return parser, commands


def _add_positionals(args: argparse.Namespace, rest: Sequence[str]) -> None:
    """Give the command the words that argparse left over because an option stands between them."""
    if hasattr(args, "overrides"):
        words = [word for word in (args.config, *args.overrides, *rest) if word is not None]
        args.config, args.overrides = (words[0], words[1:]) if words else (None, [])
    elif hasattr(args, "files"):
        args.files += rest
    elif rest:
        raise UsageError(f"{args.command} takes one file, so {rest[0]!r} is one word too many")


def _run(args: argparse.Namespace) -> int:
    """Run the command; those with a configuration import MindSpore, so they are imported only here."""
    if args.command in _WITH_CONFIG and args.config is None and not getattr(args, "emulate", False):
        raise UsageError(f"{args.command} needs a CONFIG.yaml; for example\n  hyperparallel {args.command} CONFIG.yaml")
    if args.command == "plan":
        return plan.run(args)
    if args.command == "check":
        return check.run(args)
    if args.command == "plot":
        return plot.run(args)
    if args.command == "export":
        return export.run(args)
    return importlib.import_module(f"hyperparallel.commands.{args.command}").run(args)


def _version() -> str:
    """Read the version of the installed package."""
    try:
        return importlib.metadata.version("hyperparallel")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
