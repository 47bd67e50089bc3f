"""The source of a rank's step: every action once, inputs kept for the backward, tokens in order."""

import ast
import re

import pytest

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cells.graph_program import variable, write_source
from hyperparallel.cells.graph_source import StageFacts

MODEL = ModelSpec.of({"vision": 4, "llm": 8})
SCHEDULES = (
    "1f1b(vision+llm)",
    "gpipe(vision+llm)",
    "wave(vision+llm)",
    "zb(vision+llm)",
    "1f1b(vision+llm)*2",
    "transpose(vision) >> 1f1b(llm)",
    "transpose(vision) >> zb(llm, fold=v)",
)


def sources(schedule, ranks=2, micro_batches=4, recompute=(), width=1):
    plan = derive(schedule, MODEL, ranks, micro_batches)
    placement = plan.placement
    facts = {
        stage: StageFacts(
            ("pixels",) if placement.slabs[stage][0] == 0 else ("labels",) if placement.slabs[stage][1] == 12 else (),
            placement.gates[stage].receives_gradient,
            placement.gates[stage].reduces,
            stage in recompute,
        )
        for stage in range(placement.stages)
    }
    for rank, program in enumerate(plan.programs):
        own = {stage: facts[stage] for stage in range(rank, placement.stages, ranks)}
        yield plan, program, write_source(program, placement, own, [width] * placement.stages)


def text_of(source):
    return source.text("a step")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("width", (1, 2))
def test_every_name_is_assigned_before_it_is_read(schedule, width):
    for _, _, source in sources(schedule, width=width):
        known = set(source.arguments) | {"self"}
        function = next(node for node in ast.walk(ast.parse(text_of(source))) if isinstance(node, ast.FunctionDef))
        for statement in function.body:
            assert isinstance(statement, ast.Assign), "straight-line source only"
            read = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
            assert read <= known, f"{read - known} in {ast.unparse(statement)}"
            known |= {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_actions_stand_in_the_order_of_the_program(schedule):
    for _, program, source in sources(schedule):
        assert [line[2:] for line in source.lines if line.startswith("# ")] == [str(action) for action in program]
        assert source.gates == list(program)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_compute_waits_for_the_one_before_it(schedule):
    """Its gate's token is what the compute before it made."""
    for _, _, source in sources(schedule):
        blocks = re.split(r"^# (\S+)\n", "\n".join(source.lines), flags=re.M)[1:]
        previous = "rates"
        for action, body in zip(blocks[::2], blocks[1::2], strict=True):
            if "W" in action:  # through a mark, from which all its gates hang
                tokens = re.findall(r"mark = self\.depend\(\w+\[0\], (.+)\)", body)
                assert f"self.hold(self.gate_{action}, mark, " in body
            else:
                tokens = re.findall(r"self\.gate_\S+?\((?:[^,()]|\([^()]*\))+, (.+?)\)+$", body, flags=re.M)
            assert tokens and all(previous.split("_")[0] in token for token in tokens), (action, body, previous)
            if re.fullmatch(r"\d+[FBIW]\d+", action):
                stage, mb = re.findall(r"\d+", action)
                made = (f"h{stage}_{mb}", f"u{stage}_{mb}", f"acc{stage}", f"w{stage}_{mb}")
                previous = next(name for name in made if f"{name} = " in body)


def test_a_backward_gets_the_inputs_of_its_forward():
    for _, _, source in sources("1f1b(vision+llm)"):
        forwards = dict(re.findall(r"(h\d+_\d+) = self\.stage_\d+\((.*)\)", "\n".join(source.lines)))
        backwards = re.findall(r"self\.backward_(\d+)\((.*), d\d+_(\d+)\)", "\n".join(source.lines))
        assert backwards
        for stage, inputs, mb in backwards:
            assert forwards[f"h{stage}_{mb}"] == inputs


def test_recompute_gives_the_backward_inputs_of_its_own():
    (_, _, source), _ = sources("1f1b(vision+llm)", recompute=(0,))
    assert any(re.match(r"r0_0_0 = self\.gate_0B0\(a0_0_0, ", line) for line in source.lines)
    assert any("self.backward_0(r0_0_0, d0_0)" in line for line in source.lines)


def test_arguments_are_the_columns_of_the_own_micro_batches():
    (_, _, source), (_, _, other) = sources("transpose(vision) >> 1f1b(llm)")
    assert source.inputs == [("pixels", 0), ("pixels", 2)]
    assert other.inputs == [("pixels", 1), ("pixels", 3), *(("labels", mb) for mb in range(4))]
    assert source.arguments == ["rates", variable("pixels", 0), variable("pixels", 2)]


def test_each_tensor_of_a_carry_is_a_message():
    (_, program, source), _ = sources("1f1b(vision+llm)", width=2)
    messages = [action for action in program if not action.is_compute]
    assert [(wire.action, wire.index) for wire in source.wires] == [(a, i) for a in messages for i in (0, 1)]


def test_serial_source_makes_computes_wait_for_messages_too():
    plan = derive("1f1b(vision+llm)", MODEL, 2, 2)
    facts = {1: StageFacts(("labels",), True, True)}
    lines = write_source(plan.programs[1], plan.placement, facts, [1, 1], serial=True).lines
    assert any(re.match(r"a1_1_0 = self\.gate_1F1\(h0_1, \(.*, mt\)\)", line) for line in lines)
