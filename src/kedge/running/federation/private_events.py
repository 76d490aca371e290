"""Events of a private run: they name no participants, because programs store events and publish them.

With `rule = "poisson"`, ε holds only if it stays secret which clients take part, and how many. A round has no
events either: a round without participants would lack them.
"""

from collections.abc import Callable
from typing import Any

from kedge.engines.flower.events import Events

SECRET = "secret"  # the kind of an event with a message that names participants: for the operator's terminal
PUBLIC = {
    "listening": ("address", "clients", "rounds", "joined", "private"),
    "connect": ("client", "again", "samples", "evaluates", "shares"),  # samples: None
    "disconnect": ("client",),
    "seen": ("times",),
    "refused": ("reason",),
    "end": (),
    SECRET: ("text",),
}  # kind -> its facts; other kinds, and other facts, are left out


def private_events(events: Events) -> Events:
    """Events that are passed to `events` without the facts on participants."""

    def listen(kind: str, facts: dict[str, Any]) -> None:
        if kind in PUBLIC:
            events(kind, **{name: value for name, value in facts.items() if name in PUBLIC[kind]})

    return Events(listen)


def secret_say(events: Events) -> Callable[[str], None]:
    """A function that shows a message to the operator, and writes it to no file of events."""
    return lambda text: events(SECRET, text=text)
