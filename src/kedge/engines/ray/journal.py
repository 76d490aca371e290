"""Journal: the clients' memories at the last snapshot, and the rounds since. A lost shard is rebuilt from it.

Memories of the snapshot are files in a temporary folder, one for each client, so that the driver's memory
does not grow with the number of clients. The rounds are references to orders in Ray's object store. Training
is a function of the order, so a repeated round gives the same memories, to the bit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file

from kedge.core.tree import Tree, flatten, unflatten
from kedge.engines.ray.arrays import to_arrays

ROUNDS = 10  # between two snapshots, unless a checkpoint takes one earlier


class JournalRound(NamedTuple):
    """A round since the snapshot."""

    order: Any  # reference to the order in the object store
    shards: list[list[int]]  # the clients of each shard


class Journal:
    """The state from which a lost shard is rebuilt."""

    def __init__(self) -> None:
        self.folder = TemporaryDirectory(prefix="kedge-memories-", ignore_cleanup_errors=True)
        self.snapshot: dict[int, Path] = {}  # by client
        self.rounds: list[JournalRound] = []
        self.number = 0  # of files written so far

    def add(self, round: JournalRound) -> None:
        """Add a round that has trained."""
        self.rounds.append(round)

    @property
    def trained(self) -> list[int]:
        """The clients that have trained since the snapshot."""
        return sorted({client for round in self.rounds for shard in round.shards for client in shard})

    def take(self, memories: Iterable[tuple[int, Tree]], only_changed: bool) -> None:
        """Take a snapshot: write `memories`, and forget the rounds.

        `only_changed`: clients that are not in `memories` keep those of the previous snapshot. The previous
        snapshot is replaced when all files are written, so an error leaves it as it was.
        """
        written = {client: self.write(memory) for client, memory in memories}
        previous = self.snapshot
        self.snapshot = {**previous, **written} if only_changed else written
        self.rounds = []
        for path in set(previous.values()) - set(self.snapshot.values()):
            path.unlink()

    def write(self, memory: Tree) -> Path:
        """Write one client's memory to a new file."""
        self.number += 1
        path = Path(self.folder.name) / f"{self.number}.safetensors"
        save_file({name: v.detach().cpu().contiguous() for name, v in flatten(memory).items()}, path)
        return path

    def memories(self, clients: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The memories of `clients` in the snapshot, read one after another."""
        for client in clients:
            if client in self.snapshot:
                yield client, self.memory(client)

    def memory(self, client: int) -> dict[str, Any]:
        """The memory of a client in the snapshot; its tensors are mapped, and read when they are used."""
        return unflatten(load_file(self.snapshot[client]))

    def arrays(self, clients: Sequence[int]) -> dict[str, Any]:
        """The memories of `clients` in the snapshot as arrays, by the clients' names."""
        return {str(client): to_arrays(memory) for client, memory in self.memories(clients)}

    def rounds_of(self, shard: int) -> list[tuple[Any, list[int]]]:
        """The rounds in which clients of `shard` trained: order and clients."""
        return [(round.order, round.shards[shard]) for round in self.rounds if round.shards[shard]]

    def close(self) -> None:
        """Remove the files."""
        self.folder.cleanup()


def by_client(saved: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The memories of an engine's `save`, by the numbers of the clients."""
    return ((int(name), memory) for name, memory in saved.items())
