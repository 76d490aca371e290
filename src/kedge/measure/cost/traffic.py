"""Bytes between the server and a client in a round: the tensors that are sent, in the run's precision.

Down goes the shared part, batch norm's statistics and what corrections broadcast; up goes the update of the
shared part, the statistics and what corrections upload. A leaf that trains on nobody in a round is not
exchanged, nor is anything a correction sends by its name: it does not change. The client has it already,
unless it trained after the server last sent it to this client; then it goes down once. The first weights come
from the seed and are never sent. Statistics move also where weights rest, so "shared" ones always travel;
"local" ones go up, and down to a client that comes for the first time; "frozen" ones stay where they are.
"""

from collections.abc import Mapping

from kedge.core.model import Statistics
from kedge.core.tree import Tree, flatten


def tensor_bytes(tree: Tree) -> dict[str, int]:
    """The bytes of every tensor, by its path."""
    return {path: v.numel() * v.element_size() for path, v in flatten(tree).items()}


def named(path: str) -> str:
    """What a tensor is about: the last part of its path."""
    return path.rpartition("/")[2]


class Traffic:
    """What one method sends, whatever trains."""

    def __init__(
        self,
        leaves: frozenset[str],
        down: Tree,
        up: Tree,
        buffers: Tree,
        statistics: Statistics,
    ) -> None:
        """`down` and `up` without the statistics; `leaves` are the names of all the model's parameters."""
        self.leaves, self.down, self.up = leaves, tensor_bytes(down), tensor_bytes(up)
        self.statistics, self.buffers = statistics, sum(tensor_bytes(buffers).values())

    def bytes_down(self, trained: frozenset[str], first: bool = False) -> int:
        """To a client that lacks nothing but this round's news."""
        travels = self.statistics == "shared" or (self.statistics == "local" and first)
        return self.exchanged(self.down, trained) + self.buffers * travels

    def bytes_up(self, trained: frozenset[str]) -> int:
        """From a client."""
        return self.exchanged(self.up, trained) + self.buffers * (self.statistics != "frozen")

    def exchanged(self, sizes: Mapping[str, int], trained: frozenset[str]) -> int:
        """The bytes of what is about leaves that train, or about no leaf."""
        frozen = self.leaves - trained
        return sum(size for path, size in sizes.items() if named(path) not in frozen)
