"""Shards: fixed parts of the clients; the clients of a shard train in one call, and their sums are added.

The number of shards never changes in a run. A worker trains one shard or several, so the number of workers
may change without changing a single bit of the results: the same clients are stacked, and sums are added in
the order of shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shards:
    """The shards of a run; `work` has each client's number of samples."""

    count: int
    work: Sequence[int]

    def owner(self, client: int) -> int:
        """The shard that keeps the memory of a client."""
        return client % self.count

    def divide(self, clients: Sequence[int], by_owner: bool) -> list[list[int]]:
        """The clients of a round in shards, each in the order of `clients`.

        `by_owner`: each client trains in the shard that has its memory. Else samples are divided evenly.
        """
        if by_owner:
            return [[c for c in clients if self.owner(c) == shard] for shard in range(self.count)]
        loads = [0] * self.count
        shard_of = {}
        for client in sorted(clients, key=lambda c: -self.work[c]):  # a stable sort: ties keep their order
            shard = loads.index(min(loads))
            shard_of[client] = shard
            loads[shard] += self.work[client]
        return [[c for c in clients if shard_of[c] == shard] for shard in range(self.count)]
