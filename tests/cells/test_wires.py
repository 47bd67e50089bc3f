"""Wires: messages in order and whole, sums with equal bits, strangers and dead peers."""

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

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


def test_a_message_in_the_place_of_a_term_is_refused(wires):
    wires[1].send(0, b"HYPERPARsomething else")
    with pytest.raises(TransportError, match="rank 0 waits for 2 numbers of a sum from rank 1, but got .* 22 bytes"):
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
    with pytest.raises(TransportError, match="rank 1 waits for a message of rank 0, which has gone"):
        right.receive(0)
