"""Messages: packed and unpacked as they were, and refused where they are not what was awaited."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from hyperparallel import Transport
from hyperparallel.algebra import Action
from hyperparallel.cells.transport import Tag, _pack, _widened
from hyperparallel.errors import TransportError

TAG = Tag(Action(6, "SEND_B", 5), 17)
ENDS = "message from rank 1 to rank 2, step 17, 6SEND_B5"
DTYPES = st.sampled_from(["f4", "f2", "f8", "i4", "i8", "u1", "bool", "c8"])
arrays = DTYPES.flatmap(
    lambda dtype: nps.arrays(dtype, nps.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3))
)


def unpack(data, tag=TAG):
    return Transport(rank=2, size=4)._unpack(1, tag, data)


@given(st.lists(arrays, max_size=4), st.binary(max_size=20))
def test_arrays_arrive_as_sent_whatever_follows_in_the_buffer(sent, rest):
    got = unpack(_pack(TAG, sent) + rest)
    assert len(got) == len(sent)
    for left, right in zip(got, sent, strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()


def test_a_view_that_is_not_contiguous_arrives_as_sent():
    view = np.arange(24).reshape(4, 6).T[::2]
    np.testing.assert_array_equal(unpack(_pack(TAG, [view]))[0], view)


@pytest.mark.parametrize(
    ("awaited", "words"),
    [
        (Tag(Action(6, "SEND_B", 4), 17), "6SEND_B4: got 6SEND_B5 of step 17 instead"),
        (Tag(Action(5, "SEND_B", 5), 17), "5SEND_B5: got 6SEND_B5 of step 17 instead"),
        (Tag(Action(6, "SEND_F", 5), 17), "6SEND_F5: got 6SEND_B5 of step 17 instead"),
        (Tag(Action(6, "SEND_B", 5), 18), "step 18, 6SEND_B5: got 6SEND_B5 of step 17 instead"),
    ],
)
def test_another_message_is_refused(awaited, words):
    with pytest.raises(TransportError) as error:
        unpack(_pack(TAG, [np.ones(2)]), awaited)
    assert words in str(error.value) and "from rank 1 to rank 2" in str(error.value)


@given(st.integers(0, 380))
def test_a_message_cut_short_anywhere_is_refused(length):
    message = _pack(TAG, [np.arange(40, dtype=np.float32), np.ones((2, 2))])
    assert len(message) > 380
    for data in (message[:length], message[:length] + bytes(len(message) - length)):
        with pytest.raises(TransportError) as error:
            unpack(data)
        assert str(error.value).startswith(ENDS)


@pytest.mark.parametrize(
    ("data", "words"),
    [(bytes(4096), "was not filled by its sender"), (b"\xff" * 4096, "was not filled"), (b"HYPERPAR", "is cut short")],
)
def test_a_buffer_that_was_not_filled_is_refused(data, words):
    with pytest.raises(TransportError, match=words) as error:
        unpack(data)
    assert str(error.value).startswith(ENDS)


@given(st.integers(4097, 10**9))
def test_a_widened_channel_has_room_for_the_message_and_at_most_its_double(size):
    assert size <= _widened(size) < 2 * size


def test_one_process_sums_by_itself():
    values = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(Transport().sum(values, [0]), values)


def test_without_msrun_a_transport_is_alone(monkeypatch):
    monkeypatch.delenv("MS_ROLE", raising=False)
    alone = Transport.start()
    assert (alone.rank, alone.size) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["message", "small sum", "large sum"])
def test_a_rank_that_waits_leaves_its_core_to_the_others(probes, wait):
    assert probes[1]["waiting"][wait] < 0.3  # MindSpore's own wait takes all of it
