"""Errors a user can cause: each says what was given, where, what was expected and the move to make."""

import sys


def note(error: BaseException, text: str) -> None:
    """Add a line to what is printed of an error, such as the action a rank was in.

    Args:
        error: about to be raised on.
        text: the line.
    """
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:  # prints no notes
        print(text, file=sys.stderr, flush=True)


class HyperParallelError(ValueError):
    """Base of every error that a user's input can cause; the command line prints it and exits with 2."""


class ScheduleSyntaxError(HyperParallelError):
    """A schedule line that does not parse; the message shows the line with a caret under the place."""


class ScheduleError(HyperParallelError):
    """A schedule that parses but does not fit the model, the ranks or the micro-batches."""


class ProgramSyntaxError(HyperParallelError):
    """Text or CSV of a program that does not parse; names file, row and column."""


class PlanError(HyperParallelError):
    """A plan that must not run; the message shows the grid with the offending cell marked."""


class ModelError(HyperParallelError):
    """A layer list or a model size that cannot work."""


class DataError(HyperParallelError):
    """A batch or a data source that does not fit the model or the plan."""


class ConfigError(HyperParallelError):
    """A YAML file or an override with a wrong key, type or value."""


class JsonError(HyperParallelError):
    """Text that is not JSON, or that has more than one meaning."""


class CheckpointError(HyperParallelError):
    """A checkpoint that cannot be written, is not complete, or does not fit the model."""


GONE, SILENT = "which has gone", "which does not answer"
"""What a TransportError says of a rank that was waited for, `from rank 1, which has gone`; the starter looks for it."""


class TransportError(HyperParallelError):
    """A message that is not the one the plan asks for; names both ends."""


class DryRunError(HyperParallelError):
    """Compiling without a device cannot go on: a program, a file or a plug-in is missing or not as expected."""


class TrainingError(HyperParallelError):
    """A step that training cannot go on from, such as one whose loss is not a number."""
