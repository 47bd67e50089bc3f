"""Which ranks hold each layer, and what a rank holds in all."""

import pytest
from views_cases import BOTH_ENDS

from hyperparallel import ModelSpec, derive
from hyperparallel.views.placement import LayerSize, placement_data, placement_table


def placed(line, counts, frozen=(), ranks=2):
    """Derive a plan, and give layer i 100 + i parameters."""
    model = ModelSpec.of(counts, frozen)
    sizes = [
        LayerSize(f"{layer.part}.{i}", 100 + i, (100 + i) * layer.trainable) for i, layer in enumerate(model.layers)
    ]
    return derive(line, model, ranks, 4), sizes


def test_table():
    plan, sizes = placed("transpose(vision) >> 1f1b(llm)", {"vision": 1, "llm": 4}, frozen={"vision"})
    sizes[-1] = sizes[-1]._replace(parameters=1_000_000, trainable=1_000_000)
    lines = placement_table(plan, sizes).splitlines()
    assert lines == [
        "layer      part     ranks   parameters       bytes",
        "vision.0   vision   0-1            100         400",
        "llm.1      llm      0              101         404",
        "llm.2      llm      0              102         408",
        "llm.3      llm      1              103         412",
        "llm.4      llm      1        1,000,000   4,000,000",
        "",
        "rank   parameters   weights, bytes   gradients and optimizer, bytes",
        "0             303            1,212                            2,436",
        "1       1,000,203        4,000,812                       12,001,236",
    ]


@pytest.mark.parametrize(
    ("line", "counts", "ranks"),
    [
        ("1f1b(vision+llm)", {"vision": 3, "llm": 5}, 4),
        ("1f1b(vision+llm)*2", {"vision": 3, "llm": 5}, 2),
        ("zb(llm, fold=v)", {"llm": 9}, 2),
        (BOTH_ENDS, {"vision": 2, "llm": 4, "gen": 1}, 2),
    ],
)
def test_ranks_are_those_whose_slabs_hold_the_layer(line, counts, ranks):
    plan, sizes = placed(line, counts, ranks=ranks)
    data = placement_data(plan, sizes)
    for rank in range(ranks):
        held = set()
        for stage in range(rank, plan.placement.stages, ranks):
            held |= set(range(*plan.placement.slabs[stage]))
        assert [rank in row["ranks"] for row in data["layers"]] == [index in held for index in range(len(sizes))]
        assert data["ranks"][rank]["parameters"] == sum(100 + index for index in held)


def test_a_fold_comes_back_to_rank_0():
    plan, sizes = placed("wave(llm)", {"llm": 4})
    assert [row["ranks"] for row in placement_data(plan, sizes)["layers"]] == [[0], [1], [1], [0]]


def test_what_is_frozen_has_no_gradient_and_no_optimizer():
    plan, sizes = placed("1f1b(vision+llm, slabs=[1,1])", {"vision": 1, "llm": 1}, frozen={"vision"})
    assert placement_data(plan, sizes)["ranks"] == [
        {"parameters": 100, "bytes": 400, "state_bytes": 0},
        {"parameters": 101, "bytes": 404, "state_bytes": 1212},
    ]
