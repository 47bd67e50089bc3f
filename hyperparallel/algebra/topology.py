"""Where a pipeline rank, a replica and a tensor-parallel rank sit among the workers of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """P x D x T workers, numbered as MindSpore numbers pipeline stages: (r * D + d) * T + t.

    Args:
        ranks: P, ranks of one pipeline.
        data_parallel: D, replicas of the pipeline.
        tensor_parallel: T, workers that share the matrices of one stage.

    Example:
        >>> Topology(ranks=2, data_parallel=2, tensor_parallel=2).worker(rank=1, replica=0, shard=1)
        5
    """

    ranks: int
    data_parallel: int = 1
    tensor_parallel: int = 1

    @property
    def workers(self) -> int:
        """P x D x T."""
        return self.ranks * self.data_parallel * self.tensor_parallel

    def worker(self, rank: int, replica: int = 0, shard: int = 0) -> int:
        """Return the number of a worker in the job."""
        return (rank * self.data_parallel + replica) * self.tensor_parallel + shard

    def coordinates(self, worker: int) -> tuple[int, int, int]:
        """Return (rank, replica, shard) of a worker."""
        rest, shard = divmod(worker, self.tensor_parallel)
        rank, replica = divmod(rest, self.data_parallel)
        return rank, replica, shard

    def replicas(self, ranks: tuple[int, ...], shard: int = 0) -> tuple[int, ...]:
        """Return the workers of all replicas of some pipeline ranks that hold the same shard, in rising order."""
        return tuple(self.worker(rank, d, shard) for rank in sorted(ranks) for d in range(self.data_parallel))

    def shards(self, worker: int) -> tuple[int, ...]:
        """Return the workers that share one stage with `worker`: its tensor-parallel group."""
        first = worker - worker % self.tensor_parallel
        return tuple(range(first, first + self.tensor_parallel))
