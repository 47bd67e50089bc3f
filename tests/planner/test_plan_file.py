"""A plan that was written is read back equal; what is of another plan, changed or broken, is refused in words."""

import json

import pytest

from hyperparallel.algebra import ModelSpec
from hyperparallel.cost import PartCost, costs_from_parts
from hyperparallel.errors import HyperParallelError, PlanError
from hyperparallel.json_file import seal
from hyperparallel.planner import Settings, plan_line
from hyperparallel.planner.plan_file import read_plan_file, to_plan_file
from hyperparallel.planner.recheck import certify_anew, check_held

LINE = "transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"
MODEL = ModelSpec.of({"vision": 2, "llm": 4})
PARTS = {"vision": PartCost(9, 9), "llm": PartCost(4, 8)}


def plan(line=LINE, parts=PARTS):
    return plan_line(line, MODEL, 2, 3, lambda plan: costs_from_parts(plan, parts), Settings(engine="list"))


@pytest.fixture
def planned():
    return plan()


def write(path, planned, **change):
    """Write a plan with some keys changed, and a seal that is right for it."""
    path.write_text(json.dumps(seal({**json.loads(to_plan_file(planned)), **change})))
    return path


def refused(path, line=LINE):
    """Read a file that is wrong; return what is said of it."""
    with pytest.raises(PlanError) as error:
        read_plan_file(path, line, MODEL, 2, 3)
    assert "plan.json" in str(error.value)
    return str(error.value)


def test_it_reads_back_equal(tmp_path, planned):
    path = tmp_path / "plan.json"
    path.write_text(to_plan_file(planned))
    assert read_plan_file(path, LINE, MODEL, 2, 3) == planned
    spaced = LINE.replace(" >> ", ">>")
    assert read_plan_file(path, spaced, MODEL, 2, 3).plan.programs == planned.plan.programs


def certificate(**change):
    return {"certificate": {**json.loads(to_plan_file(plan()))["certificate"], **change}}


COMPUTE = json.loads(to_plan_file(plan()))["compute"]
BROKEN = {
    "another line": ({"schedule": "1f1b(vision+llm)"}, "plan again"),
    "another P": ({"ranks": 3}, "plan again"),
    "a rank out of range": ({"owners": [[0, 7], [0, 1], [0, 1]]}, "its owners do not fit"),
    "a micro-batch too few": ({"owners": [[0, 1], [0, 1]]}, "its owners do not fit"),
    "no owners": ({"owners": []}, "its owners do not fit"),
    "mixed pieces": ({"owners": [[0, 1], [0], [0, 1]]}, "its owners do not fit"),
    "no pieces": ({"owners": [0, 1, 0]}, "its owners do not fit"),
    "three pieces": ({"owners": [[0, 1, 0]] * 3}, "its owners do not fit P = 2, M = 3 in 2 pieces"),
    "times too few": ({"ends": [[1.0], [1.0]]}, "not one time for each action"),
    "times that go back": ({"ends": [[9.0, *[1.0] * 17], [1.0] * 18]}, "not one time for each|go back"),
    "garbage in a row": ({"compute": "rank 0: 0F0x\nrank 1: 1F0"}, "is not an action"),
    "a row too few": ({"compute": "rank 0: 0F0.0"}, "not one time for each action"),
    "a stage that is not there": ({"compute": COMPUTE.replace("2F0 ", "8F0 ", 1)}, "stage 8 of 8F0 does not exist"),
    "a micro-batch that is not there": ({"compute": COMPUTE.replace("2F0 ", "2F7 ", 1)}, "micro-batch 7 of 2F7 does"),
    "a message": ({"compute": COMPUTE.replace("2F0 ", "2SEND_F0 ", 1)}, "2SEND_F0 is a message"),
    "the backbone in another order": (
        {"compute": COMPUTE.replace("2F0 ", "2F? ").replace("2F1 ", "2F0 ").replace("2F? ", "2F1 ")},
        "2F1 stands where",
    ),
    "an unknown version": ({"version": 3}, "is not a plan"),
    "a key too many": ({"more": 1}, "is not a plan"),
    "a text for a number": ({"ranks": "2"}, "ranks = '2'"),
    "a shorter step": (certificate(step_time=1.0), "certificate.step_time = 1, but the last action ends at"),
    "a bound above the step": (certificate(bound=1e9), "cannot both be true"),
    "proven and not": (certificate(proven=False), "cannot both be true"),
    "too few held": (certificate(held=[1]), "certificate.held has 1 numbers for 2 ranks"),
    "more held than there are": (certificate(held=[1, 99]), "a rank holds 99 encodes, but there are 6"),
    "an unknown engine": (certificate(engine="luck"), "certificate.engine = 'luck'"),
}


@pytest.mark.parametrize("change, said", BROKEN.values(), ids=BROKEN)
def test_a_wrong_file_is_refused(tmp_path, planned, change, said):
    message = refused(write(tmp_path / "plan.json", planned, **change))
    assert any(one in message for one in said.split("|")), message


def test_a_file_that_was_changed_is_refused(tmp_path, planned):
    path = tmp_path / "plan.json"
    text = to_plan_file(planned)
    path.write_text(text.replace('"waiting": 1', '"waiting": 2'))
    assert "was changed after it was written" in refused(path)
    content = json.loads(text)
    del content["sha256"]
    path.write_text(json.dumps(content))
    assert "'sha256' is missing" in refused(path)
    path.write_text(text.replace('"ranks": 2', '"ranks": 2, "ranks": 2'))
    assert "has the key 'ranks' twice" in refused(path)


@pytest.mark.parametrize("options", ["owner=balanced", "owner=balanced, split=2", "place=fill"])
def test_what_the_line_says_must_be_so_in_the_file(tmp_path, options):
    """A file of a plan with everything open has another order, or other owners, than a line that fixes them."""
    line = f"transpose(vision, {options}) >> 1f1b(llm)"
    path = write(tmp_path / "plan.json", plan(line))
    assert read_plan_file(path, line, MODEL, 2, 3) == plan(line)
    split = ", split=2" if "split" in options else ""
    uneven = {"vision": PartCost(9, 9), "llm": PartCost(1, 1)}
    other = plan(f"transpose(vision, owner=balanced, place=fill{split}) >> 1f1b(llm)", uneven)
    write(path, other, schedule=str(plan(line).plan.schedule))
    message = refused(path, line)
    assert "stands where" in message or "its owners are not those of the line" in message


def test_an_order_that_cannot_run_is_refused_by_the_checks_of_every_plan(tmp_path, planned):
    first, *others = COMPUTE.splitlines()
    words = first.split(" ")
    encodes = iter([word for word in reversed(words[2:]) if word[0] == "0"])
    turned = [next(encodes) if word[0] == "0" else word for word in words[2:]]
    compute = "\n".join([" ".join([*words[:2], *turned]), *others])
    assert "rank 0, step" in refused(write(tmp_path / "plan.json", planned, compute=compute))


def test_no_file_and_no_json_are_refused(tmp_path):
    with pytest.raises(HyperParallelError, match="cannot be read"):
        read_plan_file(tmp_path / "none.json", LINE, MODEL, 2, 3)
    for content in (b"nothing", b"\xff", b"[]", b"null", b'{"ends": [[1e999]]}', b"[" * 100_000):
        (tmp_path / "plan.json").write_bytes(content)
        assert "is not a plan" in refused(tmp_path / "plan.json")


def test_the_certificate_is_computed_again(planned):
    """Under the same costs it is that of the file; under others its times are those, and no search is claimed."""
    for line in (LINE, "transpose(vision, owner=balanced) >> 1f1b(llm)"):
        made = plan(line)
        assert certify_anew(made, lambda plan: costs_from_parts(plan, PARTS)) == made
        twice = {name: PartCost(2 * cost.forward, 2 * cost.backward) for name, cost in PARTS.items()}
        now = certify_anew(made, lambda plan: costs_from_parts(plan, twice))  # noqa: B023 (called at once)
        assert now.certificate.step_time == pytest.approx(2 * made.certificate.step_time)
        assert now.certificate.bound <= now.certificate.step_time
        assert now.certificate.held == made.certificate.held
    claimed = planned._replace(certificate=planned.certificate.__class__(1.0, 1.0, True, "exact", (0, 0), 0))
    honest = certify_anew(claimed, lambda plan: costs_from_parts(plan, PARTS)).certificate
    assert (honest.step_time, honest.held, honest.waiting) == (
        planned.certificate.step_time,
        planned.certificate.held,
        planned.certificate.waiting,
    )


def test_a_limit_on_encodes_holds_for_a_file_too(planned):
    check_held(planned, max(planned.certificate.held))
    with pytest.raises(PlanError, match="holds .* encodes at a time, and the memory limit is"):
        check_held(planned, max(planned.certificate.held) - 1)
