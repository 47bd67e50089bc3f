import pytest

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.algebra.seams import seam
from hyperparallel.algebra.skeletons import Layout

R, S = Layout.REPLICATED, Layout.SHARDED


@pytest.mark.parametrize(
    "left, right, forward, backward",
    [(R, S, "Gather", "Scatter"), (S, S, "Send", "RecvGrad"), (S, R, "Scatter", "Gather")],
)
def test_seam_table(left, right, forward, backward):
    assert seam(left, right) == (forward, backward)


def test_two_replicated_neighbours_have_no_seam():
    with pytest.raises(KeyError):
        seam(R, R)


def test_a_plan_has_one_seam_between_two_regions():
    model = ModelSpec.of({"vision": 2, "llm": 2})
    assert derive("transpose(vision) >> 1f1b(llm)", model, 2, 2).seams == (("Gather", "Scatter"),)
    assert derive("1f1b(vision+llm)", model, 2, 2).seams == ()
    assert derive("1f1b(vision+llm)*2", model, 1, 2).seams == (("Send", "RecvGrad"),)
    assert derive("gpipe(vision) >> transpose(llm)", model, 2, 2).seams == (("Scatter", "Gather"),)
