"""A plan on disk: decided once, read by every rank, without the planner and without OR-Tools.

Nothing in a file is believed because it is there: it must be as it was written (its seal), its owners, actions and
times must be those of one plan of the line that runs, and the plan passes the checks of every plan. What can only be
checked with the costs is checked by who has them (`recheck.py`).
"""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hyperparallel.algebra import Plan, Schedule, derive, from_text, to_text, validate
from hyperparallel.algebra.expression import normal_form, parse
from hyperparallel.algebra.model import ModelSpec
from hyperparallel.algebra.regions import Encodes, fill_parts, needs_planner
from hyperparallel.algebra.validate import check_compute
from hyperparallel.errors import HyperParallelError, JsonError, PlanError
from hyperparallel.json_file import read_json, seal
from hyperparallel.limits import MAX_CELLS, MAX_RANKS, Time
from hyperparallel.planner.line import Certificate, Planned, base_of
from hyperparallel.planner.recheck import ROUNDING, check_fits
from hyperparallel.schema import Items, Strict

_MAX_BYTES = 2**28
"""A plan of 500 ranks and 2,000 micro-batches takes a third of it."""

_Rank = Annotated[int, Field(ge=0, lt=MAX_RANKS)]
_Count = Annotated[int, Field(ge=0, le=MAX_CELLS)]
_AGAIN = "; make it again with hyperparallel plan --out"


class CertificateFile(Strict):
    """What a file says of how good its plan is; see `Certificate`."""

    step_time: Time
    bound: Time
    proven: bool
    engine: Literal["list", "local search", "exact"]
    held: Items[_Count]
    waiting: _Count


class PlanFile(Strict):
    """What a file says of a plan: enough to derive it again for the same line, model, P and M."""

    version: Literal[2] = 2
    schedule: Annotated[str, Field(max_length=10_000)]
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    micro_batches: Annotated[int, Field(ge=1, le=MAX_CELLS)]
    owners: Items[_Rank | Items[_Rank]]
    compute: str
    ends: Items[Items[Time]]
    certificate: CertificateFile
    sha256: str = Field("", description="see `seal`")


def to_plan_file(planned: Planned) -> str:
    """Write a plan that the planner made, as JSON.

    Args:
        planned: with a certificate.
    """
    plan, certificate = planned
    assert certificate is not None and plan.owner is not None, "the line leaves nothing to the planner"
    content = PlanFile(
        schedule=str(plan.schedule),
        ranks=plan.ranks,
        micro_batches=plan.micro_batches,
        owners=plan.owner,
        compute=to_text(plan.compute),
        ends=plan.ends or (),
        certificate=CertificateFile(**vars(certificate)),
    )
    return json.dumps(seal(content.model_dump(mode="json")), indent=1)


def read_plan_file(path: Path, schedule: str, model: ModelSpec, ranks: int, micro_batches: int) -> Planned:
    """Read a plan and derive it again.

    Args:
        path: the file.
        schedule: the line that is to run; the file must have been made for it.
        model: the layers, in parts.
        ranks: P.
        micro_batches: M.

    Raises:
        PlanError: the file cannot be read, was changed, is of another line, P or M, says what cannot be of one
            plan, or does not pass the checks of a plan.

    Returns:
        The validated plan, with the certificate of the costs that it was made for.
    """
    found = _read(path)
    line = normal_form(fill_parts(parse(schedule), model))
    wanted = (str(line), ranks, micro_batches)
    given = (found.schedule, found.ranks, found.micro_batches)
    if wanted != given or not needs_planner(line.regions[0]):
        raise PlanError(
            f"{path}: was made for {given[0][:200]} with P = {given[1]}, M = {given[2]}; this is {wanted[0]} with P = "
            f"{wanted[1]}, M = {wanted[2]}: plan again"
        )
    _check_owners(found, int(line.regions[0].option("split")), path)
    try:
        compute = from_text(found.compute, "compute")
        _check_certificate(found, compute)
        plan = _derive(found, line, model, compute)
    except HyperParallelError as error:
        raise PlanError(f"{path}: {error}") from None
    return Planned(plan, Certificate(**found.certificate.model_dump()))


def _read(path: Path) -> PlanFile:
    try:
        found = read_json(path, PlanFile, _MAX_BYTES)
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror}); make it with hyperparallel plan --out") from None
    except JsonError as error:
        raise PlanError(f"{path}: is not a plan: {error}{_AGAIN}") from None
    if not found.sha256:
        raise PlanError(f"{path}: is not a plan: 'sha256' is missing, so a change would not be seen{_AGAIN}")
    return found


def _check_owners(found: PlanFile, split: int, path: Path) -> None:
    """Refuse owners of another shape than the plan's, before they are used as indices."""
    flat = [rank for owner in found.owners for rank in (owner if isinstance(owner, tuple) else (owner,))]
    pieces = {len(owner) if isinstance(owner, tuple) else 1 for owner in found.owners}
    listed = {isinstance(owner, tuple) for owner in found.owners}
    fits = len(found.owners) == found.micro_batches and pieces == {split} and listed == {split > 1}
    if not fits or max(flat) >= found.ranks:
        split_words = f" in {split} pieces" if split > 1 else ""
        raise PlanError(
            f"{path}: its owners do not fit P = {found.ranks}, M = {found.micro_batches}{split_words}; plan again"
        )


def _check_certificate(found: PlanFile, compute: tuple[tuple, ...]) -> None:
    """Refuse times and a certificate that are not of these actions."""
    certificate, lengths = found.certificate, [len(row) for row in compute]
    if lengths != [len(row) for row in found.ends] or len(lengths) != found.ranks:
        raise PlanError(f"has not one time for each action of {found.ranks} ranks; plan again")
    for rank, row in enumerate(found.ends):
        if list(row) != sorted(row):
            raise PlanError(f"the times of rank {rank} go back; plan again")
    last = max((row[-1] for row in found.ends if row), default=0.0)
    if not isclose(last, certificate.step_time, rel_tol=ROUNDING):
        raise PlanError(
            f"certificate.step_time = {certificate.step_time:g}, but the last action ends at {last:g}; plan again"
        )
    if certificate.bound > certificate.step_time * (1 + ROUNDING) or (
        certificate.proven != (certificate.step_time <= certificate.bound * (1 + ROUNDING))
    ):
        raise PlanError(
            f"certificate.bound = {certificate.bound:g} and proven = {certificate.proven} cannot both be true of a "
            f"step of {certificate.step_time:g}; plan again"
        )
    if len(certificate.held) != found.ranks:
        raise PlanError(
            f"certificate.held has {len(certificate.held)} numbers for {found.ranks} ranks; expected one for each, so "
            "plan again"
        )
    encodes = sum(len(owner) if isinstance(owner, tuple) else 1 for owner in found.owners)
    most = max(*certificate.held, certificate.waiting)
    if most > encodes:
        raise PlanError(f"certificate: a rank holds {most} encodes, but there are {encodes} in all; plan again")


def _derive(found: PlanFile, line: Schedule, model: ModelSpec, compute: tuple[tuple, ...]) -> Plan:
    """Derive the plan, and check it before and after its messages are put in."""
    plan = derive(line, model, found.ranks, found.micro_batches, Encodes(found.owners, compute, found.ends))
    message = next((action for row in compute for action in row if not action.is_compute), None)
    if message is not None:
        raise PlanError(f"compute: {message} is a message, and a file holds only F, B, I and W; plan again")
    check_compute(compute, plan.placement)
    check_fits(plan, base_of(line, model, found.ranks, found.micro_batches))
    return validate(plan)
