"""`hyperparallel export`: write the weights of a checkpoint as one safetensors file."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from hyperparallel.commands.arguments import UsageError
from hyperparallel.errors import CheckpointError
from hyperparallel.paths import expand_home
from hyperparallel.tensors import MOMENTS
from hyperparallel.training.checkpoint_files import find_checkpoint, settle, write_tensors
from hyperparallel.training.stored import Stored

SUMMARY = "write the weights of a run or checkpoint as one safetensors file"
EXAMPLE = "hyperparallel export runs/train/2026-01-31_12-00-00 model.safetensors"
EPILOG = f"""\
The names are the model's global ones, such as llm.embed.weight, whatever layout the job had; what tensor parallelism
cut is joined. A tied weight is written once, under the name that the others are tied to; the metadata, JSON under
'hyperparallel', say which are tied, the step and the schedule. A job starts from the file with
  hyperparallel train CONFIG.yaml init_from=OUT.safetensors

example:
  {EXAMPLE}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    parser.usage = f"{parser.prog} [-h] [--optimizer] [--force] RUN OUT.safetensors"
    parser.add_argument(
        "files",
        nargs="*",
        metavar="RUN OUT.safetensors",
        help="a run folder, whose newest checkpoint it is, or the folder of a checkpoint; and the file to write",
    )
    parser.add_argument("--optimizer", action="store_true", help="write the optimizer's moments too")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def run(args: argparse.Namespace) -> int:
    """Write the file and print one line about it.

    Args:
        args: of `add_arguments`.

    Raises:
        UsageError: not RUN and OUT.
        CheckpointError: there is no complete checkpoint, or OUT cannot be written.

    Returns:
        0.
    """
    if len(args.files) != 2:
        raise UsageError(f"export needs RUN and OUT.safetensors, got {len(args.files)} words; for example\n  {EXAMPLE}")
    try:
        source, out = (Path(expand_home(word)) for word in args.files)
    except ValueError as error:
        raise UsageError(f"export: {error}") from None
    _check_out(out, args.force)
    with Stored(find_checkpoint(source)) as stored:
        index = stored.index
        assert index is not None, "a checkpoint has an index"
        names = [name for name in stored.shapes if args.optimizer or not name.startswith(MOMENTS)]
        tensors = {name: stored.read(name) for name in names}
        about = {"step": index.step, "schedule": index.schedule, "tied": index.tied}
        metadata = {"hyperparallel": json.dumps(about)}  # one entry: the library orders several at random
        _write(out, tensors, metadata)
    size = sum(value.nbytes for value in tensors.values())
    print(f"{out}: {len(tensors)} tensors, {size} bytes, of {stored.where} (step {index.step})")
    return 0


def _check_out(out: Path, force: bool) -> None:
    """Refuse a place that cannot be meant."""
    if os.path.islink(out) or (os.path.exists(out) and not os.path.isfile(out)):
        # Renaming onto /dev/null would put a file in the place of the device.
        raise CheckpointError(
            f"{out} is {'a folder' if os.path.isdir(out) else 'no regular file'}; give the name of a file"
        )
    if os.path.exists(out) and not force:
        raise CheckpointError(f"{out} exists; give another name, or --force to replace it")
    if not os.path.isdir(out.absolute().parent):
        raise CheckpointError(f"{out.parent} is not a folder; make it first")


def _write(out: Path, tensors: dict, metadata: dict[str, str]) -> None:
    """Write beside the place and rename, so the file is never seen half-written."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        write_tensors(part, tensors, metadata)
        part.replace(out)
        settle(out.absolute().parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{out} cannot be written ({error}); give a place with room") from None
    finally:
        with suppress(OSError):  # it may not be there, nor could it be
            part.unlink()
