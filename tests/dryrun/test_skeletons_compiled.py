"""Every skeleton on every rank, compiled for Ascend: the graph runs the plan's program, and the ranks agree."""

import json
import sys
from pathlib import Path

import pytest
from grid_cases import GRID, OTHERS, SCHEDULES, TRANSPOSE, GridCase, plan_of

from hyperparallel import parse
from hyperparallel.algebra.skeletons.base import registry
from hyperparallel.algebra.topology import Topology
from hyperparallel.dryrun import check_ranks, comm_only, final_ir, gist, read_order, run_ranks, unforced
from hyperparallel.dryrun.proof import compare, read_step, repeated_forwards

HERE = Path(__file__).parent
every_case = pytest.mark.parametrize("case", [*GRID, *OTHERS], ids=lambda case: case.name)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Compile all cases, one process for each worker of a job of that size."""
    out = tmp_path_factory.mktemp("grid")
    for workers in sorted({case.topology.workers for case in (*GRID, *OTHERS)}):
        dumped = out / f"dumped{workers}"
        command = [sys.executable, str(HERE / "grid_worker.py"), str(dumped), str(out)]
        environment = {"OMP_NUM_THREADS": "1"}
        for run in run_ranks(command, workers, save_graphs=dumped, extra_env=environment, timeout=900):
            assert run.passed, gist(run.output)
    return out


@pytest.fixture(scope="module")
def events(folder):
    """Case -> events of each of its workers, read once."""
    known = {}

    def read(case: GridCase):
        if case not in known:
            known[case] = []
            for worker in range(case.topology.workers):
                at = folder / case.name / f"rank_{worker}"
                known[case].append(read_order(final_ir(at), groups=json.loads((at / "groups.json").read_text())))
        return known[case]

    return read


@every_case
def test_the_graph_runs_the_program_of_the_plan(events, case):
    plan = plan_of(case)
    for worker, graph in enumerate(events(case)):
        step = read_step(graph)
        assert compare(step, plan.programs[case.topology.coordinates(worker)[0]]) == [], worker
        assert unforced(graph) == []


@every_case
def test_the_workers_do_not_wait_for_each_other_in_a_circle(events, case):
    assert check_ranks(events(case)) == []


@every_case
def test_no_forward_runs_twice_unless_asked_for(events, case):
    for graph in events(case):
        step = read_step(graph)
        again = {action.stage for action in repeated_forwards(step)}
        assert again == {action.stage for action in step.operators if action.kind == "B"} & set(case.recompute)
        products = {
            action: {op: count for (op, backward), count in operators.items() if not backward}
            for action, operators in step.operators.items()
            if action.kind == "F"
        }
        for action, found in products.items():
            twin = next(other for other in products if other.stage == action.stage)
            assert found.get("MatMul") == products[twin].get("MatMul"), "micro-batches of one stage differ"


def test_every_skeleton_is_in_the_grid():
    assert {region.skeleton for line in SCHEDULES for region in parse(line).regions} == set(registry())


def test_the_check_sees_a_swapped_message(events):
    """The proof can fail: two messages of one rank change places."""
    case = GridCase(TRANSPOSE, Topology(2), 4)
    plan = plan_of(case)
    program = list(plan.programs[0])
    sends = [index for index, action in enumerate(program) if action.kind == "SEND_F"]
    program[sends[0]], program[sends[1]] = program[sends[1]], program[sends[0]]
    assert compare(read_step(events(case)[0]), program)


def test_a_worker_that_is_one_message_short_is_found(events):
    """Drop a receive of rank 1: rank 0 is stuck at the send."""
    first, second = events(GridCase(TRANSPOSE, Topology(2), 4))
    dropped = next(event for event in comm_only(second) if event.op == "Receive")
    assert any("stuck" in problem for problem in check_ranks([first, [e for e in second if e is not dropped]]))


def test_bfloat16_travels_as_such(events):
    case = next(case for case in OTHERS if case.dtype == "bfloat16")
    kinds = {event.dtype for graph in events(case) for event in comm_only(graph) if event.op == "Send"}
    assert kinds == {"BFloat16"}


def test_shards_sum_inside_their_stage_only(events):
    case = next(case for case in OTHERS if case.topology.tensor_parallel == 2)
    for worker, graph in enumerate(events(case)):
        groups = {event.ranks for event in comm_only(graph) if event.op == "AllReduce"}
        assert case.topology.shards(worker) in groups
