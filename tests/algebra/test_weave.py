import pytest
from algebra_cases import LINES, SHARDED, plan_of, plans, quick
from hypothesis import given

from hyperparallel.algebra.weave import weave


def region_rows(plan, region):
    return [[action for action in row if action.stage // plan.ranks == region] for row in plan.compute]


@pytest.mark.parametrize("name", SHARDED)
def test_a_transpose_in_front_lies_around_the_order_without_it(name):
    plan, alone = plan_of(f"transpose(vision) >> {name}(llm)", 3, 5), plan_of(f"{name}(llm)", 3, 5)
    for rank, row in enumerate(plan.compute):
        encodes = [f"{rank}F{mb}" for mb in range(rank, 5, 3)]
        backwards = [f"{rank}B{mb}" for mb in range(rank, 5, 3)]
        inside = [str(action._replace(stage=action.stage + 3)) for action in alone.compute[rank]]
        assert list(map(str, row)) == encodes + inside + backwards


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_regions_of_one_skeleton_that_follow_each_other_are_its_chunks(name):
    apart, counted = plan_of(f"{name}(vision) >> {name}(llm)", 3, 5), plan_of(f"{name}(vision+llm)*2", 3, 5)
    assert apart.compute == counted.compute


def test_a_region_of_gpipe_in_a_mixture_starts_no_backward_before_all_its_forwards():
    for line, region in (("1f1b(vision) >> gpipe(llm)", 1), ("gpipe(vision) >> 1f1b(llm)", 0)):
        for row in region_rows(plan_of(line, 3, 5), region):
            assert "".join(action.kind for action in row) == "FFFFFBBBBB"


def test_a_region_of_zb_in_a_mixture_is_the_only_one_that_splits():
    plan = plan_of("zb(vision) >> 1f1b(llm)", 3, 5)
    assert {action.kind for row in region_rows(plan, 0) for action in row} == set("FIW")
    assert {action.kind for row in region_rows(plan, 1) for action in row} == set("FB")


@pytest.mark.parametrize(
    "line, owner_stage",
    [("1f1b(vision) >> transpose(llm)", 2), ("1f1b(vision) >> transpose(audio) >> gpipe(llm)", 2)],
)
def test_a_transpose_elsewhere_runs_at_its_owners(line, owner_stage):
    plan = plan_of(line, 2, 3)
    for rank, row in enumerate(region_rows(plan, 1)):
        assert {(action.stage, action.mb) for action in row} == {(owner_stage + rank, mb) for mb in range(rank, 3, 2)}


def test_a_transpose_alone_runs_each_micro_batch_at_its_owner():
    assert [" ".join(map(str, row)) for row in plan_of("transpose(llm)", 3, 4).compute] == [
        "0F0 0B0 0F3 0B3", "1F1 1B1", "2F2 2B2",
    ]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_micro_batches_keep_their_order_at_every_stage(line):
    plan = plan_of(line, 3, 8)
    for row in plan.compute:
        for stage in {action.stage for action in row}:
            for kinds in ("F", "BI", "W"):
                mbs = [action.mb for action in row if action.stage == stage and action.kind in kinds]
                assert mbs == sorted(mbs)


@quick
@given(plans())
def test_weaving_again_changes_nothing(plan):
    assert weave(plan.regions, plan.placement) == plan.compute
