"""Workers are numbered one to one, as MindSpore numbers pipeline stages."""

from hyperparallel.algebra.topology import Topology


def test_numbers_every_worker_once():
    topology = Topology(3, 2, 4)
    numbers = [topology.worker(r, d, t) for r in range(3) for d in range(2) for t in range(4)]
    assert numbers == list(range(topology.workers))
    assert all(topology.worker(*topology.coordinates(worker)) == worker for worker in numbers)


def test_groups():
    topology = Topology(2, 2, 2)
    assert topology.shards(5) == (4, 5)
    assert topology.replicas((0,), shard=1) == (1, 3)
    assert topology.replicas((1, 0)) == (0, 2, 4, 6)
