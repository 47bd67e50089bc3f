"""What every schema of a file has in common: what it takes, and how a mistake is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hyperparallel.yaml_file import NOTHING

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(strict=False)]
"""Several values, which a file writes as a list; each of them is checked as strictly as any other."""


class Strict(BaseModel):
    """Take what is meant and nothing else.

    Unknown keys, numbers that are not finite, booleans for numbers, numbers for booleans and texts for either are
    refused. Nothing at all stands for a section whose keys have their defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_no_keys(cls, values: Any) -> Any:
        return {} if values is NOTHING or values is None else values


def first_problem(problems: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose the problem to say: a misspelt key is unknown and leaves the right one missing, and the former says more.

    Args:
        problems: of pydantic.
    """
    return next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])


def say_problem(name: str, problem: Mapping[str, Any]) -> str:
    """Say what is wrong with a value.

    Args:
        name: of its key, with dots; empty for the whole file.
        problem: of pydantic; neither an unknown key nor a source.
    """
    if problem["type"] == "missing":
        return f"{name!r} is missing; add it"
    value = problem["input"]
    if value is NOTHING:
        return f"{name!r} has no value; give one, or leave the key out"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    limit = next((number for key, number in problem.get("ctx", {}).items() if key in ("ge", "gt", "le", "lt")), None)
    if isinstance(limit, float):  # 1e+38 instead of 39 digits
        message = f"{message.rpartition(' ')[0]} {limit:g}"
    given = "" if isinstance(value, dict) else f" = {value!r:.100}"
    return f"{name}{given}: {message}{_move(problem['type'], value)}".lstrip(": ")


def _move(kind: str, value: Any) -> str:
    """Say what to do about a value that looks like what was expected."""
    if kind == "bool_type":
        return "; write true or false"
    if kind in ("int_type", "float_type") and isinstance(value, str) and value.strip().lstrip("+-")[:1].isdigit():
        return "; write it in digits, without quotes, such as 10 or 1.5e-3"
    if kind == "string_type" and isinstance(value, int | float):
        return "; write it in quotes"
    return ""
