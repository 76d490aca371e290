"""Events of a federation: connections, orders, replies, rejections; for a live table and for programs."""

from collections.abc import Callable
from typing import Any

Listener = Callable[[str, dict[str, Any]], None]


class Events:
    """Passes each event to its listeners, with the number of the current round; called by one thread."""

    def __init__(self, *listeners: Listener) -> None:
        """A listener receives the kind of an event, and its facts."""
        self.listeners = listeners
        self.round = 0

    def __call__(self, kind: str, **facts: Any) -> None:
        """Pass an event to all listeners."""
        self.round = facts["round"] if kind == "round" else self.round
        now = {"round": self.round} if self.round else {}
        for listener in self.listeners:
            listener(kind, {**now, **facts})


SILENT = Events()
