"""Members: the connected clients of a federation, their introduction and admission.

A node that connects receives the introduction: the task, as text and plain numbers. Its answer names the
client that it is. A client that connects again, also from another process, replaces its old connection.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.messages import Content, MessageError, Request, from_record, to_record
from kedge.engines.flower.superlink import SuperLink

PAUSE_SECONDS = 0.01  # between two looks at the replies
FAREWELL_SECONDS = 5.0  # for the clients to read that the training has ended
SEEN_SECONDS = 1.0  # between two events with the clients' signs of life
REMINDER_SECONDS = 30.0  # between two messages that name the missing clients


class Connection(NamedTuple):
    """A node, and the time of its activation: both are new when a client connects again."""

    node: int
    activated: str


@dataclass
class Member:
    """A connected client."""

    connection: Connection
    samples: int | None  # None: secret
    evaluates: bool = False  # whether it has a validation set
    shares: bool = False  # whether it sends its metrics
    new: bool = True  # whether it has received no order yet on this connection
    online: bool = True


class Members:
    """The clients of a federation; all methods are called by the thread of the training."""

    def __init__(
        self,
        link: SuperLink,
        introduction: Request,
        admit: Callable[[int, Content], int],
        say: Callable[[str], None],
        events: Events = SILENT,
    ) -> None:
        """`admit(node, answer)` returns the number of a client, or raises MessageError with the reason."""
        self.link, self.introduction, self.admit = link, introduction, admit
        self.say, self.events = say, events
        self.asked: dict[Connection, str] = {}  # new connections -> the introduction that they have to answer
        self.refusals: dict[int, str] = {}  # node -> the message with the reason
        self.seen: set[Connection] = set()
        self.reported = 0.0  # when the signs of life were last reported
        self.clients: dict[int, Member] = {}

    def send(self, node: int, request: Request) -> str:
        """Send a message to a node; return its number."""
        return self.link.send(node, to_record(request.kind, request.facts, request.tensors))

    def update(self) -> None:
        """Introduce the task to new connections, and admit or refuse the connections that have answered."""
        nodes = self.link.nodes()
        self.report_lost(nodes)
        for node, activated in nodes.items():
            connection = Connection(node, activated)
            if connection not in self.seen:
                self.seen.add(connection)
                self.withdraw_unread(node)
                self.asked[connection] = self.send(node, self.introduction)
        for connection, number in list(self.asked.items()):
            record = self.link.receive(number)
            if record is None:
                continue
            del self.asked[connection]
            try:
                answer = from_record(record)
                client = self.admit(connection.node, answer)
                samples = answer.integer("samples") if "samples" in answer.facts else None
            except MessageError as error:
                self.say(f"a client was refused: {error}")
                self.events("refused", reason=str(error))
                reason = Request("refused", {"reason": str(error)}, {})
                self.refusals[connection.node] = self.send(connection.node, reason)
                continue
            evaluates, shares = (answer.facts.get(name) is True for name in ("evaluates", "shares"))
            self.connect(client, Member(connection, samples, evaluates, shares))

    def connect(self, client: int, member: Member) -> None:
        """Add a client, or replace its old connection."""
        again = client in self.clients
        self.clients[client] = member
        size = "" if member.samples is None else f": {member.samples} samples"
        self.say(f"client {client} is connected{' again' if again else ''}{size}")
        self.events(
            "connect",
            client=client,
            samples=member.samples,
            again=again,
            evaluates=member.evaluates,
            shares=member.shares,
        )

    def withdraw_unread(self, node: int) -> None:
        """Withdraw the messages to an earlier process of a node: the next one must not read them."""
        numbers = [self.asked.pop(c) for c in list(self.asked) if c.node == node]
        if node in self.refusals:
            numbers.append(self.refusals.pop(node))
        for number in numbers:
            self.link.withdraw(number)

    def report_lost(self, nodes: Mapping[int, str]) -> None:
        """Report the clients whose connections have ended, and signs of life of the others.

        `nodes` are the connected nodes.
        """
        if time.monotonic() - self.reported > SEEN_SECONDS:
            self.reported, times = time.monotonic(), self.link.last_seen()
            numbers = {client: member.connection.node for client, member in self.clients.items()}
            self.events("seen", times={c: times[node] for c, node in numbers.items() if node in times})
        for client, member in self.clients.items():
            if member.online and nodes.get(member.connection.node) != member.connection.activated:
                member.online = False
                self.say(f"client {client} has disconnected")
                self.events("disconnect", client=client)

    def wait_for(self, count: int) -> None:
        """Wait until `count` clients are connected."""
        reminded = time.monotonic()
        while (missing := count - len(self.clients)) > 0:
            self.update()
            if time.monotonic() - reminded > REMINDER_SECONDS:
                reminded = time.monotonic()
                self.say(f"waiting for {missing} more; connected: {clients_text(sorted(self.clients))}")
            time.sleep(PAUSE_SECONDS)

    def connected(self) -> list[int]:
        """The clients whose connections are alive."""
        nodes = self.link.nodes()
        return [
            client
            for client, member in sorted(self.clients.items())
            if nodes.get(member.connection.node) == member.connection.activated
        ]

    def dismiss(self, reason: str) -> None:
        """Send the end of the training to all connected clients; wait briefly until they have read it."""
        request = Request("end", {"reason": reason}, {})
        numbers = [self.send(member.connection.node, request) for member in self.clients.values()]
        deadline = time.monotonic() + FAREWELL_SECONDS
        while numbers and time.monotonic() < deadline:
            numbers = [number for number in numbers if self.link.receive(number) is None]
            time.sleep(PAUSE_SECONDS)


def clients_text(clients: Sequence[int]) -> str:
    """The clients in words."""
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, clients))}" if clients else "none"
