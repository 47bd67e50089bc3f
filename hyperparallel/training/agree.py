"""Agree over all workers whether something went well, so that all go on or all stop."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import numpy as np
from safetensors import SafetensorError

from hyperparallel.cells.transport import Transport
from hyperparallel.errors import HyperParallelError

_LONGEST = 4096  # bytes of a text


def share_texts(transport: Transport, text: str) -> dict[int, str]:
    """Let every worker know the texts of all; every worker calls this.

    Args:
        transport: the job.
        text: this worker's, possibly empty; cut after 4096 bytes.

    Returns:
        Worker -> text, without the empty ones; the same on every worker.
    """
    # A path may hold bytes that are no text in UTF-8.
    data = np.frombuffer(text.encode(errors="surrogateescape")[:_LONGEST], np.uint8)
    everybody = range(transport.size)
    lengths = np.zeros(transport.size, np.float32)
    lengths[transport.rank] = len(data)
    lengths = transport.sum(lengths, everybody).astype(int)
    if not lengths.any():
        return {}
    table = np.zeros((transport.size, lengths.max()), np.float32)
    table[transport.rank, : len(data)] = data
    table = transport.sum(table, everybody).astype(np.uint8)
    return {
        worker: table[worker, :length].tobytes().decode(errors="surrogateescape")
        for worker, length in enumerate(lengths)
        if length
    }


def together(transport: Transport, do: Callable[[], None]) -> dict[int, str]:
    """Do something on every worker, and tell all where it failed.

    Args:
        transport: the job.
        do: what may fail for the disk, or for what a user gave; any other exception passes.

    Returns:
        Worker -> why it failed; empty when all went well. The same on every worker.
    """
    reason = ""
    try:
        do()
    except OSError as error:
        name = f": {error.filename}" if error.filename else ""
        reason = f"{error.strerror or error}{name}"
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # the library says so where the system refused
        reason = os.strerror(int(number[1])) if number else str(error)
    except HyperParallelError as error:
        reason = str(error)
    return share_texts(transport, reason)
