"""Wires: messages in order and whole, sums with equal bits, strangers, and peers that are dead or silent."""

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hyperparallel import Transport
from hyperparallel.algebra import Action
from hyperparallel.cells.transport import Tag
from hyperparallel.cells.wires import Wires
from hyperparallel.errors import TransportError


def connected(size):
    """Open the wires of a job whose ranks are threads of this process."""
    tables, everyone = [], threading.Barrier(size)

    def add(table):
        tables.append(table)
        everyone.wait()
        return sum(tables)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: Wires(rank, size, add), range(size)))


@pytest.fixture(scope="module")
def wires():
    return connected(3)


def test_messages_come_whole_and_in_order_though_nobody_waits_for_them(wires):
    messages = [bytes([number]) * size for number, size in enumerate((0, 1, 5_000_000, 3, 70_000))]
    for message in messages:
        wires[0].send(2, message)
    wires[1].send(2, b"from another rank")
    assert [bytes(wires[2].receive(0)) for _ in messages] == messages
    assert wires[2].receive(1) == b"from another rank"


@pytest.mark.parametrize("ranks", [(0, 1, 2), (2, 0), (1, 2)])
def test_every_member_gets_the_bits_of_the_same_sum(wires, ranks):
    terms = {rank: np.float32([[0.1, 1e8, -0.0], [rank, 3.3 * rank, 1e-30]]) for rank in ranks}
    with ThreadPoolExecutor(len(ranks)) as pool:
        sums = list(pool.map(lambda rank: wires[rank].sum(terms[rank], ranks), ranks))
    first, *others = sorted(ranks)
    expected = terms[first]
    for rank in others:
        expected = expected + terms[rank]
    assert all(one.tobytes() == expected.tobytes() and one.shape == (2, 3) for one in sums)


@pytest.mark.parametrize("shape", [(16_384,), (16_385,), (3, 50_000), (0,), ()])
@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 2)])
def test_large_sums_are_in_the_order_of_the_ranks_too(wires, ranks, shape):
    random = np.random.default_rng(1)
    terms = {rank: random.normal(size=shape).astype(np.float32) for rank in ranks}
    before = {rank: term.copy() for rank, term in terms.items()}
    with ThreadPoolExecutor(len(ranks)) as pool:
        sums = list(pool.map(lambda rank: wires[rank].sum(terms[rank], ranks), ranks))
    expected = terms[0]
    for rank in ranks[1:]:
        expected = expected + terms[rank]
    assert all(one.tobytes() == expected.tobytes() and one.shape == shape for one in sums)
    assert all(np.array_equal(terms[rank], before[rank]) for rank in ranks)


def test_a_message_in_the_place_of_a_term_is_refused(wires):
    wires[1].send(0, b"HYPERPARsomething else")
    with pytest.raises(
        TransportError, match="rank 0 waits for 2 numbers of the sum of .* from rank 1, but got .* 22 bytes"
    ):
        wires[0].sum(np.zeros(2, np.float32), (0, 1))


def test_a_stranger_is_not_listened_to(wires):
    with socket.create_connection(wires[0]._addresses[0]) as stranger:
        stranger.sendall(struct.pack("<8s4sI", b"HYPERTCP", b"????", 1))
        stranger.settimeout(5)
        assert stranger.recv(1) == b""
    wires[1].send(0, b"good")
    assert wires[0].receive(1) == b"good"


@pytest.mark.parametrize("cut", [b"", b"\x09\0\0\0\0\0\0\0only"])
def test_a_rank_that_waits_for_one_that_has_gone_says_so(cut):
    left, right = connected(2)
    left.send(1, b"last words")
    left._out[1].sendall(cut)
    left._out[1].close()
    assert right.receive(0) == b"last words"
    for _ in range(2):
        with pytest.raises(TransportError, match="rank 1 waits for a message from rank 0, which has gone"):
            right.receive(0)


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_rank_that_goes_is_noticed_in_the_middle_of_a_sum(size):
    left, middle, right = connected(3)
    with ThreadPoolExecutor(2) as pool:
        sums = [pool.submit(one.sum, np.ones(size, np.float32), (0, 1, 2), "the losses") for one in (left, middle)]
        for wire in right._out.values():  # it came neither far enough to send a term, nor will it
            wire.close()
        words = "waits for the sum of the losses over ranks 0, 1, 2 from rank 2, which has gone"
        with pytest.raises(TransportError, match=f"rank 0 {words}"):
            sums[0].result(timeout=10)
        for wire in left._out.values():  # as it goes for that reason
            wire.close()
        with pytest.raises(
            TransportError, match="rank 1 waits for the sum of the losses .* from rank [02], which has gone"
        ):
            sums[1].result(timeout=10)


def test_a_rank_that_sends_to_one_that_has_gone_says_so():
    left, _ = connected(2)
    left._out[1].close()
    with pytest.raises(TransportError, match="rank 0 sends a message to rank 1, which has gone"):
        left.send(1, b"message")


def test_a_rank_that_does_not_answer_is_named_with_what_was_awaited():
    left, right = connected(2)
    transport = Transport(1, 2)
    transport._wires = right
    transport.timeout_s = 0.2
    with pytest.raises(TransportError) as error:
        transport.receive(0, Tag(Action(0, "SEND_F", 3), 7))
    assert str(error.value).startswith(
        "rank 1 has waited 0.2 s for 0SEND_F3 of step 7 from rank 0, which does not answer; look at its log"
    )
    with pytest.raises(TransportError, match="0.2 s for the sum of the losses over ranks 0, 1 from rank 0, which does"):
        transport.sum(np.zeros(2, np.float32), (0, 1), "the losses")
    # One that is held still reads nothing, until the system has no room left for what is sent to it.
    right._out[0], unread = socket.socketpair()
    with (
        unread,
        pytest.raises(TransportError, match="0.2 s to send 0SEND_F3 of step 7 to rank 0, which does not answer"),
    ):
        transport.send(0, Tag(Action(0, "SEND_F", 3), 7), [np.zeros(5_000_000, np.float32)])


def test_a_wire_that_is_not_opened_in_time():
    with socket.create_server(("127.0.0.1", 0)) as other:  # takes the wire and never opens its own

        def add(table):
            table[1] = table[0]
            table[1, 4:6] = divmod(other.getsockname()[1], 256)
            return table

        with pytest.raises(TransportError, match="rank 0 has waited 0.1 s for the wires of the other ranks"):
            Wires(0, 2, add, timeout_s=0.1)
