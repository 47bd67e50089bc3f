"""Why a job failed: the rank that was first, in one sentence, rather than those that ended because of it."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import NamedTuple

from hyperparallel.errors import GONE, SILENT
from hyperparallel.training.launch import worker_logs
from hyperparallel.training.watch import SCHEDULER, Member, Watch

_AWAITED = re.compile(rf"rank \d+ .*(?:from|to) rank (\d+), ({GONE}|{SILENT})")
_PLACE = re.compile(r"rank \d+ was in (.+ of step \d+)")


class Words(NamedTuple):
    """What a rank that failed wrote into its log."""

    text: str
    traceback: bool
    place: str | None
    """The action and step it was in."""
    awaited: int | None
    """The rank it waited for, if that is why it failed."""
    silent: bool
    """Whether that one did not answer, rather than had gone."""


def explain_failure(watch: Watch, msrun_code: int | None, logs: Path, last_step: int | None) -> str:
    """Say which process failed first, how, and where its log is.

    Args:
        watch: what was seen of the processes.
        msrun_code: exit code of `msrun`, None if it had not ended by itself.
        logs: folder of the logs.
        last_step: the last step that was done, if any.
    """
    said = {rank: words for rank, path in enumerate(worker_logs(logs)) if (words := read_words(path))}
    when = "before the first step" if last_step is None else f"after step {last_step}"
    first = watch.missed() or {member: code for member, code in watch.first.items() if code != 0}
    if not first and msrun_code is not None and msrun_code < 0:
        return f"msrun {_ended(msrun_code)} {when}; its log is {logs / 'msrun.log'}"
    if not first:
        # Nobody was seen to fail (the processes could not be looked at): what they said is all there is.
        first = dict.fromkeys(said)
    # Who failed by itself says so; who was killed says nothing; who waited for another is not to blame.
    own = [rank for rank in first if rank in said and said[rank].awaited is None]
    killed = [one for one, code in first.items() if code is not None and code < 0]
    member = (own or killed or list(first) or [None])[0]
    chain = []
    while member in said and said[member].awaited is not None and member not in chain:
        chain.append(member)
        member = said[member].awaited
    if member is None:
        return f"the job failed {when} and no rank says why; read the logs in {logs}"
    if member in said:
        return _quote(member, said[member], logs)
    if member == SCHEDULER:
        return f"the scheduler of the job {_ended(first[member])} {when}; its log is {logs / 'scheduler.log'}"
    code = first.get(member, watch.ended.get(member))
    if chain and said[chain[-1]].silent:
        return _silence(member, said[chain[-1]], member in watch.still, logs)
    return f"rank {member} {_ended(code)} {when}; its log is {_log(logs, member)}{_hint(code)}"


def read_words(log: Path) -> Words | None:
    """Find what a rank said of its failure: the sentence that the command line prints, or a traceback."""
    text = log.read_text(encoding="utf-8", errors="replace")
    said = [line for line in text.splitlines() if line.startswith("hyperparallel: ")]
    if said:
        words, traceback = said[-1].removeprefix("hyperparallel: "), False
    elif "Traceback" in text:
        last = [line for line in text[text.rindex("Traceback") :].splitlines() if line and line[0] not in " -"]
        words = next((line for line in last[1:] if "Error" in line or "Exception" in line), last[-1])
        traceback = True
    else:
        return None
    place, awaited = _PLACE.findall(text), _AWAITED.search(words)
    return Words(
        words,
        traceback,
        place[-1] if place else None,
        int(awaited[1]) if awaited else None,
        bool(awaited) and awaited[2] == SILENT,
    )


def _quote(rank: Member, words: Words, logs: Path) -> str:
    if words.traceback:
        where = f" in {words.place}" if words.place else ""
        return f"rank {rank} failed{where}: {words.text} (the whole traceback is in {_log(logs, rank)})"
    return f"rank {rank} says: {words.text} (logs: {logs})"


def _silence(rank: Member, words: Words, held: bool, logs: Path) -> str:
    state = " and is held still (SIGSTOP, or a debugger)" if held else ""
    return f"rank {rank} does not answer{state}: {words.text} (log: {_log(logs, rank)})"


def _ended(code: int | None) -> str:
    if code is None:
        return "has gone"
    if code >= 0:
        return f"ended with exit code {code} without a word"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a number without a name, such as a real-time signal
        return f"was killed by signal {-code}"


def _hint(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "; if nobody killed it, the machine had no memory left (dmesg says so)"
    return ""


def _log(logs: Path, rank: Member) -> Path:
    return logs / f"worker_{rank}.log"
