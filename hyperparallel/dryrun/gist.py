"""Cut what a failed compilation printed to the point."""

from __future__ import annotations

import re

# `ValueError: text` at the start of a line, as the last lines of a Python traceback have it.
_EXCEPTION = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Warning)): ?(.*)$")
_BARE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Interrupt|Exit)$")
# mindspore says "[ERROR] MODULE(pid,...):date-time [file:line] function] text" when it logs.
_LOGGED = re.compile(r"^\[(?:ERROR|CRITICAL)\] .*?\[\S+:\d+\](?: \w+\])? ?(.*)$")
# The vendor's package that is missing on purpose, and advice that says nothing about the error.
_NOISE = re.compile(r"No module named 'te'|whl package \"te\"|^More details please refer to|^\s*\(See file ")
_CONSTRUCT_FRAME = re.compile(r"^# \d+ In file (\S+?):(\d+)")
_PYTHON_FRAME = re.compile(r'^  File "([^"]+)", line (\d+)')
_LIBRARY = ("site-packages", "/mindspore/", "<frozen")
_LONGEST = 400


def gist(text: str) -> str:
    """Find the compiler's message in all that a rank printed.

    Args:
        text: both output streams of a process.

    Returns:
        One line, the last exception and its message, cut to 400 characters; a second line with the place in the
        user's source where there is one. The last line printed if there was no exception; "" for no output.

    Example:
        >>> gist('Traceback (most recent call last):\\n  File "net.py", line 3, in <module>\\nValueError: no layers\\n')
        'ValueError: no layers\\n  at net.py:3'
    """
    lines = [line.rstrip() for line in text.splitlines() if not _NOISE.search(line)]
    found = [i for i, line in enumerate(lines) if _EXCEPTION.match(line) or _BARE.match(line)]
    if not found:
        logged = [match[1] for line in lines if (match := _LOGGED.match(line))]
        said = [line for line in lines if line.strip()]
        return _cut((logged or said or [""])[-1])
    message = _message(lines, found[-1])
    place = _place(lines, found[-1])
    return f"{message}\n  at {place}" if place else message


def _message(lines: list[str], at: int) -> str:
    """Join the lines of a message; an empty line or a ruler ends it."""
    parts = []
    for line in lines[at:]:
        if not line.strip() or line.startswith(("---", "# ")):
            break
        parts.append(line.strip())
    return _cut(" ".join(parts))


def _place(lines: list[str], at: int) -> str:
    """Find the innermost frame in the user's source: of the graph's construct if given, else of Python."""
    found = ""
    for i in range(at, len(lines)):
        match = _CONSTRUCT_FRAME.match(lines[i])
        if match and not any(part in match[1] for part in _LIBRARY):
            code = lines[i + 1].strip() if i + 1 < len(lines) else ""
            found = f"{match[1]}:{match[2]}: {code}" if code else f"{match[1]}:{match[2]}"
    if found:
        return found
    for line in reversed(lines[:at]):
        if line.startswith("Traceback "):
            break
        match = _PYTHON_FRAME.match(line)
        if match and not any(part in match[1] for part in _LIBRARY):
            return f"{match[1]}:{match[2]}"
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
