"""The exchange of a round with the connected clients: orders, replies, deadlines.

A client that connects again while a round waits for it receives its order once more.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.members import (
    PAUSE_SECONDS,
    REMINDER_SECONDS,
    Connection,
    Members,
    clients_text,
)
from kedge.engines.flower.messages import Content, MessageError, Request, from_record, tensor_bytes

NO_ANSWER = "no answer by the deadline"
SKIPPED = "round skipped: too few answers by the deadline"


class Settings(NamedTuple):
    """The settings of an exchange."""

    enough: int  # the number of answers that a round needs when its deadline has passed
    deadline: float | None = None  # seconds; None: wait for every client
    skip: bool = False  # with too few answers at the deadline, end the round without an update


@dataclass
class OpenRound:
    """The state of an exchange."""

    numbers: dict[int, str] = field(default_factory=dict)  # client -> the message that it has to answer
    connections: dict[int, Connection] = field(default_factory=dict)  # client -> where the message was sent
    replies: dict[int, Content | str] = field(default_factory=dict)


class MemberExchange:
    """Sends requests to members and waits for their replies; called by the thread of the training."""

    def __init__(
        self, members: Members, settings: Settings, say: Callable[[str], None], events: Events = SILENT
    ) -> None:
        self.members, self.settings, self.say, self.events = members, settings, say, events
        self.link = members.link

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        """Send each client its message, and wait for the replies, at most until the deadline."""
        open_round, start, reminded = OpenRound(), time.monotonic(), time.monotonic()
        self.members.update()  # also if the round has no clients
        while len(open_round.replies) < len(clients):
            self.members.update()
            missing = [client for client in clients if client not in open_round.replies]
            for client in missing:
                self.deliver(client, request, open_round)
                self.collect(client, open_round)
            if self.is_over(start, len(open_round.replies)):
                break
            if time.monotonic() - reminded > REMINDER_SECONDS:
                reminded = time.monotonic()
                self.say(f"waiting for the answer of {clients_text(missing)}")
            time.sleep(PAUSE_SECONDS)
        answered = len(open_round.replies)
        self.report_refused()
        for client, number in open_round.numbers.items():
            if client not in open_round.replies:
                self.link.withdraw(number)
                open_round.replies[client] = NO_ANSWER
        if answered < min(self.settings.enough, len(clients)):
            return dict.fromkeys(clients, SKIPPED)
        return open_round.replies

    def report_refused(self) -> None:
        """Report the replies since the last round that no message waited for, such as late replies."""
        for node, count in self.link.refused().items():
            clients = [c for c, member in self.members.clients.items() if member.connection.node == node]
            name = clients_text(clients) if clients else f"node {node}"
            self.say(f"{name} sent {count} more or late replies: they are not used.")

    @property
    def evaluating(self) -> frozenset[int]:
        """The clients that have a validation set."""
        return frozenset(client for client, member in self.members.clients.items() if member.evaluates)

    @property
    def sharing(self) -> frozenset[int]:
        """The clients that share the metrics on their validation sets."""
        return frozenset(client for client in self.evaluating if self.members.clients[client].shares)

    def reach_evaluating(self, request: Callable[[int, bool], Request]) -> Mapping[int, Content | str]:
        """Send each connected client with a validation set its message; return the replies."""
        return self.reach([c for c in self.members.connected() if c in self.evaluating], request)

    def reach(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        """Send each client its message; wait for the replies of clients that stay connected.

        Not longer than the deadline.
        """
        open_round, start = OpenRound(), time.monotonic()
        waiting = list(clients)
        while waiting:
            for client in waiting:
                self.deliver(client, request, open_round)
                self.collect(client, open_round)
            self.members.update()
            late = self.settings.deadline is not None and time.monotonic() - start > self.settings.deadline
            present = () if late else self.members.connected()
            for client in waiting:
                if client not in present and client not in open_round.replies:
                    self.link.withdraw(open_round.numbers[client])
                    open_round.replies[client] = NO_ANSWER if late else "it has disconnected"
            waiting = [client for client in waiting if client not in open_round.replies]
            time.sleep(PAUSE_SECONDS)
        return dict(sorted(open_round.replies.items()))

    def is_over(self, start: float, answers: int) -> bool:
        """Whether the deadline has passed, and the round does not wait for more answers."""
        enough, deadline, skip = self.settings
        return deadline is not None and time.monotonic() - start > deadline and (skip or answers >= enough)

    def deliver(self, client: int, request: Callable[[int, bool], Request], open_round: OpenRound) -> None:
        """Send a client its message, also again if it has connected again."""
        member = self.members.clients.get(client)
        if member is None or open_round.connections.get(client) == member.connection:
            return
        if client in open_round.numbers:
            self.link.withdraw(open_round.numbers[client])
        order = request(client, member.new)
        open_round.numbers[client] = self.members.send(member.connection.node, order)
        self.events("order", client=client, bytes=tensor_bytes(order.tensors), message=order.kind)
        open_round.connections[client] = member.connection

    def collect(self, client: int, open_round: OpenRound) -> None:
        """Take a client's reply, if it has arrived."""
        record = self.link.receive(open_round.numbers[client]) if client in open_round.numbers else None
        if record is None:
            return
        self.members.clients[client].new = False
        try:
            content = from_record(record)
            open_round.replies[client] = content
            self.events("reply", client=client, bytes=content.nbytes)
        except MessageError as error:
            open_round.replies[client] = str(error)
