"""No forward runs twice, compiled or not; carries may be tuples; messages are checked between real ranks."""

import pytest
from cells_probe import SIZES, TINY_MICRO_BATCHES, TINY_SCHEDULES, TINY_STEPS, WRITER_LINES, train_tiny, train_writers
from cells_tiny import MARK, tiny_layers
from cells_writers import Norm

from hyperparallel import Transport

pytestmark = pytest.mark.slow
FORWARDS = TINY_STEPS * TINY_MICRO_BATCHES


@pytest.mark.parametrize("schedule", TINY_SCHEDULES)
def test_python_calls_every_layer_once_per_micro_batch(probes, schedule):
    calls = {layer.name: sum(rank["calls"][schedule].get(layer.name, 0) for rank in probes) for layer in tiny_layers()}
    assert calls == {layer.name: FORWARDS for layer in tiny_layers()}


def test_compiled_layers_print_once_per_micro_batch(jobs, probes):
    """The compiler can drop neither the print nor its second run, if there were one."""
    printed = "".join((jobs / "job2" / "logs" / f"worker_{rank}.log").read_text() for rank in range(2))
    for layer in tiny_layers():
        assert printed.count(f"{MARK} {layer.name}") == FORWARDS, layer.name


@pytest.fixture(scope="module")
def alone():
    return train_tiny(TINY_SCHEDULES[1], Transport(), jit=False)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("schedule", TINY_SCHEDULES)
def test_a_pair_of_tensors_travels_between_ranks(probes, alone, schedule, jit):
    for rank in probes:
        assert rank["pairs"][f"{schedule}, jit={jit}"] == pytest.approx(alone, rel=1e-5)


def test_a_frozen_stem_sends_pairs_forward_only(probes, alone):
    losses = probes[0]["frozen stem"]
    assert losses[0] == pytest.approx(alone[0], rel=1e-5) and losses[1:] != pytest.approx(alone[1:], rel=1e-5)


@pytest.mark.parametrize("way", ["grown", "grown without wires"])
def test_a_channel_grows_and_then_carries_small_messages_again(probes, way):
    assert probes[1][way] == [True] * (len(SIZES) + 2)


def test_a_rank_that_awaits_another_message_says_both_ends(probes):
    assert probes[1]["awaited"] == (
        "message from rank 0 to rank 1, step 4, 0SEND_F3: got 0SEND_F2 of step 4 instead; both ranks must run one plan"
    )


def test_statistics_of_a_pipeline_are_those_of_one_process(probes):
    expected = train_writers(WRITER_LINES[0], Transport(), Norm)
    found = {}
    for rank in probes:
        assert rank["writers"][WRITER_LINES[0]]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        found |= rank["writers"][WRITER_LINES[0]]["parameters"]
    assert found.keys() == expected["parameters"].keys()
    for name, value in found.items():
        assert value == pytest.approx(expected["parameters"][name], abs=1e-5), name


def test_statistics_of_copies_are_refused_on_every_rank(probes):
    for rank in probes:
        said = rank["writers"][WRITER_LINES[1]]["refused"]
        assert "a forward writes enc.a.norm.moving_mean, enc.a.norm.moving_variance, and under transpose" in said
        assert "each of the P = 2 ranks forwards only the micro-batches that it owns; freeze the layer" in said
