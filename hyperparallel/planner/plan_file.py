"""A plan on disk: decided once, read by every rank, without the planner and without OR-Tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hyperparallel.algebra import Plan, derive, from_text, to_text, validate
from hyperparallel.algebra.expression import normal_form, parse
from hyperparallel.algebra.model import ModelSpec
from hyperparallel.algebra.regions import Encodes, fill_parts
from hyperparallel.errors import PlanError
from hyperparallel.planner.line import Certificate, Planned

_Rank = Annotated[int, Field(ge=0)]


class PlanFile(BaseModel):
    """What a file says of a plan: enough to derive it again for the same line, model, P and M."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    schedule: str
    ranks: int
    micro_batches: int
    owners: tuple[_Rank | tuple[_Rank, ...], ...]
    compute: str
    ends: tuple[tuple[float, ...], ...]
    certificate: Certificate


def to_plan_file(planned: Planned) -> str:
    """Write a plan that the planner made, as JSON.

    Args:
        planned: with a certificate.
    """
    plan, certificate = planned
    assert certificate is not None and plan.owner is not None, "the line leaves nothing to the planner"
    return PlanFile(
        schedule=str(plan.schedule),
        ranks=plan.ranks,
        micro_batches=plan.micro_batches,
        owners=plan.owner,
        compute=to_text(plan.compute),
        ends=plan.ends or (),
        certificate=certificate,
    ).model_dump_json(indent=1)


def read_plan_file(path: Path, schedule: str, model: ModelSpec, ranks: int, micro_batches: int) -> Planned:
    """Read a plan and derive it again.

    Args:
        path: the file.
        schedule: the line that is to run; the file must have been made for it.
        model: the layers, in parts.
        ranks: P.
        micro_batches: M.

    Raises:
        PlanError: the file cannot be read, or is of another line, P or M, or does not pass the checks of a plan.

    Returns:
        The validated plan.
    """
    try:
        found = PlanFile.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror}); make it with hyperparallel plan --out") from None
    except (ValidationError, UnicodeDecodeError, json.JSONDecodeError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise PlanError(f"{path}: is not a plan ({first}); make it with hyperparallel plan --out") from None
    line = normal_form(fill_parts(parse(schedule), model))
    wanted = (str(line), ranks, micro_batches)
    given = (found.schedule, found.ranks, found.micro_batches)
    if wanted != given:
        raise PlanError(
            f"{path}: was made for {given[0]} with P = {given[1]}, M = {given[2]}; this is {wanted[0]} with P = "
            f"{wanted[1]}, M = {wanted[2]}: plan again"
        )
    _check_owners(found, path)
    encodes = Encodes(found.owners, from_text(found.compute, str(path)), found.ends)
    plan: Plan = validate(derive(line, model, ranks, micro_batches, encodes))
    return Planned(plan, found.certificate)


def _check_owners(found: PlanFile, path: Path) -> None:
    """Refuse owners and times of another shape than the plan's, before they are used as indices."""
    flat = [rank for owner in found.owners for rank in (owner if isinstance(owner, tuple) else (owner,))]
    pieces = {len(owner) if isinstance(owner, tuple) else 1 for owner in found.owners}
    if len(found.owners) != found.micro_batches or max(flat, default=0) >= found.ranks or len(pieces) != 1:
        raise PlanError(f"{path}: its owners do not fit P = {found.ranks}, M = {found.micro_batches}; plan again")
    lengths = [len(row) for row in from_text(found.compute, str(path))]
    if lengths != [len(row) for row in found.ends] or len(lengths) != found.ranks:
        raise PlanError(f"{path}: has not one time for each action of {found.ranks} ranks; plan again")
