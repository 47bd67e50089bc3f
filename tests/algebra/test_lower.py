import pytest
from algebra_cases import compute_of, plan_of, plans, quick, table
from algebra_machine import path_of, units_of
from hypothesis import given

from hyperparallel.algebra.lower import lower
from hyperparallel.errors import PlanError

GOLDEN = [
    (
        "transpose(vision) >> 1f1b(llm)",
        "0F0 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B0 2B0 2RECV_B1 2B1 2SEND_B1 0B0",
        "1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3B0 3SEND_B0 3F1 3B1 3SEND_B1 1RECV_B1 1B1",
    ),
    (
        "1f1b(vision+llm)",
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    ),
    (
        "wave(llm)",
        "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2B0 2RECV_F1 2SEND_B0 2F1 2B1 2SEND_B1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1RECV_F1 3F0 3SEND_F0 1F1 3F1 3SEND_F1 3RECV_B0 3B0 1B0 3RECV_B1 1SEND_B0 3B1 1B1 1SEND_B1",
    ),
    (
        "1f1b(vision) >> transpose(llm)",
        "0F0 0SEND_F0 0F1 2RECV_F0 0SEND_F1 2F0 2B0 2SEND_B0 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 3F1 1RECV_B0 3B1 1B0 1SEND_B0 1B1 1SEND_B1",
    ),
    (
        "zb(llm)",
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0W0 0RECV_B1 0I1 0W1",
        "1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1",
    ),
]


@pytest.mark.parametrize("line, first, second", GOLDEN)
def test_programs_a_reviewer_can_read(line, first, second):
    assert [" ".join(map(str, program)) for program in plan_of(line, 2, 2).programs] == [first, second]


def test_in_a_round_every_rank_sends_before_it_receives():
    """Otherwise, with sends that wait, each rank's round would start after the one before it."""
    programs = plan_of("1f1b(llm)", 3, 3, ("llm",)).programs
    assert programs[1] == table("1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_F2 1F2 1SEND_F2")[0]


def test_in_a_round_every_rank_sends_before_it_receives_in_a_reflected_region_too():
    rows = [[f"{region * 3 + rank}F{mb}" for region in (0, 1) for mb in range(3)] for rank in range(3)]
    rows = [
        row + [f"{region * 3 + rank}B{mb}" for region in (1, 0) for mb in range(3)] for rank, row in enumerate(rows)
    ]
    programs = lower(table(" | ".join(map(" ".join, rows))), plan_of("wave(llm)", 3, 3).placement)
    text = " ".join(map(str, programs[1]))
    assert "4F0 4SEND_F0 4RECV_F1 4F1 4SEND_F1 4RECV_F2 4F2" in text
    assert "4B0 4SEND_B0 4RECV_B1 4B1 4SEND_B1 4RECV_B2 4B2" in text


def test_encodes_of_one_round_arrive_by_micro_batch_whatever_their_owners():
    programs = plan_of("transpose(vision, owner=[2,1,0]) >> 1f1b(llm)", 3, 3).programs
    assert programs[0][:4] == table("0F2 3RECV_F0 3RECV_F1 3F0")[0]


@quick
@given(plans())
def test_lowering_only_inserts_and_pairs_every_message(plan):
    assert compute_of(plan.programs) == plan.compute
    where = {action: rank for rank, program in enumerate(plan.programs) for action in program}
    paths = {unit: path_of(plan, unit) for unit in units_of(plan)}
    for (stage, kind, mb), rank in where.items():
        path = paths[mb]
        step = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}.get(kind)
        if step is not None:
            peer = path[path.index(stage) + step]
            ends = {"SEND": "RECV", "RECV": "SEND"}
            assert where[(peer, kind.replace(kind[:4], ends[kind[:4]]), mb)] == peer % plan.ranks != rank


def test_no_message_where_both_ends_are_one_rank():
    assert all(action.is_compute for action in plan_of("transpose(vision) >> 1f1b(llm)", 1, 4).programs[0])
    assert all(action.is_compute for action in plan_of("wave(vision) >> transpose(llm)", 1, 4).programs[0])
    owned = plan_of("transpose(vision, owner=[0,0]) >> 1f1b(llm)", 2, 2).programs
    assert not any(action.kind == "RECV_F" and action.stage == 2 for action in owned[0])


def test_a_circle_of_waits_is_told_as_ranks_and_actions():
    plan = plan_of("1f1b(llm)", 2, 2)
    with pytest.raises(PlanError) as error:
        lower(table("0F0 0B0 0F1 0B1 | 1F1 1F0 1B1 1B0"), plan.placement)
    assert "(rank 0, 0B0) waits for 1B0, (rank 1, 1F1) waits for 0F1" in str(error.value)
    assert ">0B0<" in str(error.value)
    assert "rank 0, step 1" in str(error.value)
