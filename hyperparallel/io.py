"""Read JSON that can be understood in one way only."""

from __future__ import annotations

import json
import math
from typing import Any

from hyperparallel.errors import JsonError

MAX_DEPTH = 100
"""Of lists and objects in each other: far below Python's limit, which moves with the depth of the caller."""


def parse_json(text: str, finite: bool = True) -> Any:
    """Parse JSON; refuse what `json.loads` lets pass or reads one way of several.

    Args:
        text: one JSON value.
        finite: False lets NaN, Infinity and numbers that overflow to it be, for text of which only some is used.

    Raises:
        JsonError: it is not JSON, an object has a key twice, it is nested deeper than `MAX_DEPTH`, an integer is too
            long for Python, or a number is not finite. The message completes a sentence that begins with the place.

    Returns:
        What `json.loads` makes of it.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "b": {"c": 1, "c": 2}}')
    Traceback (most recent call last):
    hyperparallel.errors.JsonError: has the key 'c' twice in one object; keep one
    """
    hooks = {"parse_constant": _refuse, "parse_float": _finite_float, "parse_int": _finite_int} if finite else {}
    try:
        values = json.loads(text, object_pairs_hook=_without_twins, **hooks)
    except JsonError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise JsonError(f"is not JSON ({error})") from None
    if _is_deeper(values, MAX_DEPTH):
        raise _too_deep()
    return values


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twin = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise JsonError(f"has the key {twin!r:.60} twice in one object; keep one")
    return values


def _is_deeper(values: Any, most: int) -> bool:
    level = [values]
    for _ in range(most):
        level = [inner for value in level for inner in _inside(value)]
    return any(isinstance(value, dict | list) for value in level)


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep() -> JsonError:
    return JsonError(f"is not JSON that can be read (nested more than {MAX_DEPTH} deep)")


def _refuse(text: str) -> Any:
    raise JsonError(f"holds {text[:40]}, which is not a finite number; give one")


def _finite_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _finite_int(text: str) -> int:
    number = int(text)  # of more digits than Python reads: a ValueError
    try:
        float(number)
    except OverflowError:
        _refuse(text)
    return number
