"""The values that a server has sent to its clients: which leaves, and how many bytes."""

from dataclasses import dataclass, field

from kedge.core.tree import Leaves
from kedge.engines.flower.private_rules import changed_leaves

NEVER = -1


@dataclass
class Traffic:
    """The bytes of the arrays in orders and uploads."""

    down: int = 0
    up: int = 0
    evaluation: int = 0  # down, for evaluations only; not in `down`


@dataclass
class Sent:
    """The rounds in which leaves changed, and in which clients received them."""

    changed: dict[str, int] = field(default_factory=dict)  # leaf -> the last round that changed it
    received: dict[int, int] = field(default_factory=dict)  # client -> its last round
    last_shared: Leaves = field(default_factory=dict)  # of a private run's last order; {} before it

    def outdated(self, client: int, new: bool) -> frozenset[str]:
        """The leaves that changed after the client's last round."""
        last = NEVER if new else self.received.get(client, NEVER)
        return frozenset(k for k, round in self.changed.items() if round >= last)

    def note_changes(self, shared: Leaves, round: int) -> None:
        """Note the leaves that a private run has changed since its last order, also by noise alone."""
        if self.last_shared or round:
            changed = changed_leaves(self.last_shared, shared)
            self.changed |= dict.fromkeys(changed, round - 1)
        self.last_shared = shared
