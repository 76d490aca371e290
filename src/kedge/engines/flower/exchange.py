"""Exchange: the protocol of an object that sends requests to clients and returns their replies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kedge.engines.flower.messages import Content, Request


class Exchange(Protocol):
    """Sends requests to clients and returns their replies."""

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        """The reply of each client, or the reason why it has not replied.

        `request(client, new)` makes a client's message; `new`: the client has nothing of earlier messages.
        """
        ...

    def reach_evaluating(self, request: Callable[[int, bool], Request]) -> Mapping[int, Content | str]:
        """The replies of the connected clients that have a validation set."""
        ...

    @property
    def evaluating(self) -> frozenset[int]:
        """The clients that have a validation set."""
        ...

    @property
    def sharing(self) -> frozenset[int]:
        """The clients that share the metrics on their validation sets."""
        ...
