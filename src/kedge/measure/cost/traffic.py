"""Bytes sent between the server and a client in a round, in the run's precision.

The server sends shared leaves, batch-norm statistics and the corrections' broadcasts. The client sends the
update of the shared leaves, the statistics and the corrections' uploads. A leaf that trains on no client in a
round does not change, so neither it nor any correction's tensor for it is sent. If it changed after the
server last sent it to this client, it is sent down once. Initial weights follow from the seed and are never
sent. Statistics also change while weights are frozen. They are always sent if they are "shared", and never if
"frozen". If they are "local", clients send them up, and the server sends them to clients in their first
round.
"""

from collections.abc import Mapping

from kedge.core.model import Statistics
from kedge.core.tree import Tree, flatten


def tensor_bytes(tree: Tree) -> dict[str, int]:
    """The size in bytes of each tensor, by path."""
    return {path: v.numel() * v.element_size() for path, v in flatten(tree).items()}


def leaf_name(path: str) -> str:
    """The leaf that a tensor belongs to: the last part of its path."""
    return path.rpartition("/")[2]


class Traffic:
    """Bytes that one method sends, in a round in which a given set of leaves trains."""

    def __init__(
        self,
        leaves: frozenset[str],
        down: Tree,
        up: Tree,
        buffers: Tree,
        statistics: Statistics,
    ) -> None:
        """`down` and `up` exclude the statistics; `leaves` are the names of all the model's parameters."""
        self.leaves, self.down, self.up = leaves, tensor_bytes(down), tensor_bytes(up)
        self.statistics, self.buffers = statistics, sum(tensor_bytes(buffers).values())

    def bytes_down(self, trained: frozenset[str], first: bool = False) -> int:
        """Bytes sent to a client that has all earlier changes; `first`: the client's first round."""
        sent = self.statistics == "shared" or (self.statistics == "local" and first)
        return self.sent_bytes(self.down, trained) + self.buffers * sent

    def bytes_up(self, trained: frozenset[str]) -> int:
        """Bytes sent by a client."""
        return self.sent_bytes(self.up, trained) + self.buffers * (self.statistics != "frozen")

    def sent_bytes(self, sizes: Mapping[str, int], trained: frozenset[str]) -> int:
        """Bytes of the tensors that belong to a leaf in `trained`, or to no leaf."""
        frozen = self.leaves - trained
        return sum(size for path, size in sizes.items() if leaf_name(path) not in frozen)
