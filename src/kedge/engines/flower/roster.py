"""Roster: the clients that have joined a federation, their numbers of samples, and their first rounds.

A client that connects while a round trains takes part from the next round on. The roster is stored when a
client joins, so a server that is killed and restarted repeats every round with the same clients and sizes.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kedge.engines.flower.messages import MessageError


class Joined(NamedTuple):
    """A client that has joined."""

    samples: int
    first_round: int  # from 1, as in the history


class Roster:
    """The clients that have joined; all methods are called by the thread of the training."""

    def __init__(
        self,
        joined: Mapping[int, Joined] | None = None,
        store: Callable[[Mapping[int, Joined]], None] = lambda joined: None,
    ) -> None:
        """`joined`: the clients of a training that has started before, None for a new one.

        `store` writes the clients to a file.
        """
        self.started, self.joined, self.store = joined is not None, dict(joined or {}), store
        self.next_round = 1  # the first round of a client that joins now

    def join(self, client: int, samples: int) -> None:
        """Add a client; raise MessageError if it has joined before, with another number of samples."""
        before = self.joined.get(client)
        if self.started and before is not None:
            if before.samples != samples:
                raise MessageError(
                    f"client {client} has {samples} samples; it had {before.samples} when it joined"
                )
            return
        self.joined[client] = Joined(samples, self.next_round)
        if self.started:
            self.store(self.joined)

    def start(self) -> None:
        """Start the training with the clients that have joined."""
        self.started = True
        self.store(self.joined)

    def begin_round(self, round: int) -> dict[int, int]:
        """Begin the round after `round` rounds; return the number of samples of each client that may train.

        Clients that join from now on take part from the next round on.
        """
        self.next_round = round + 2
        return self.sizes(round)

    def sizes(self, round: int) -> dict[int, int]:
        """The number of samples of each client that had joined before the round after `round` rounds."""
        return {c: found.samples for c, found in self.joined.items() if found.first_round <= round + 1}
