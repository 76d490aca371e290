"""Members: the connected clients of a federation, their introduction, and the exchange of a round.

A node that connects receives the introduction: the task, as text and plain numbers. Its answer names the
client that it is. A client that connects again, also from another process, replaces its old connection, and
receives the order of the round once more.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.messages import Content, MessageError, Request, from_record, tensor_bytes, to_record
from kedge.engines.flower.superlink import SuperLink

LATE = "no answer by the deadline"
PAUSE_SECONDS = 0.01  # between two looks at the replies
FAREWELL_SECONDS = 5.0  # for the clients to read that the training has ended
SEEN_SECONDS = 1.0  # between two events with the clients' signs of life
REMINDER_SECONDS = 30.0  # between two messages that name the missing clients


class Settings(NamedTuple):
    """The settings of an exchange."""

    enough: int  # the number of answers that a round needs when its deadline has passed
    deadline: float | None = None  # seconds; None: wait for every client
    skip: bool = False  # with too few answers at the deadline, end the round without an update


class Connection(NamedTuple):
    """A node, and the time of its activation: both are new when a client connects again."""

    node: int
    activated: str


@dataclass
class Member:
    """A connected client."""

    connection: Connection
    samples: int
    evaluates: bool = False  # whether it has a validation set
    shares: bool = False  # whether it sends its metrics
    new: bool = True  # whether it has received no order yet on this connection
    online: bool = True


@dataclass
class OpenRound:
    """The state of an exchange."""

    numbers: dict[int, str] = field(default_factory=dict)  # client -> the message that it has to answer
    connections: dict[int, Connection] = field(default_factory=dict)  # client -> where the message was sent
    replies: dict[int, Content | str] = field(default_factory=dict)


class Members:
    """The clients of a federation; all methods are called by the thread of the training."""

    def __init__(
        self,
        link: SuperLink,
        introduction: Request,
        admit: Callable[[int, Content], int],
        settings: Settings,
        say: Callable[[str], None],
        events: Events = SILENT,
    ) -> None:
        """`admit(node, answer)` returns the number of a client, or raises MessageError with the reason."""
        self.link, self.introduction, self.admit = link, introduction, admit
        self.settings, self.say, self.events = settings, say, events
        self.asked: dict[Connection, str] = {}  # new connections -> the introduction that they have to answer
        self.refusals: dict[int, str] = {}  # node -> the message with the reason
        self.seen: set[Connection] = set()
        self.reported = 0.0  # when the signs of life were last reported
        self.members: dict[int, Member] = {}

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
                samples = answer.integer("samples")
            except MessageError as error:
                self.say(f"a client was refused: {error}")
                self.events("refused", reason=str(error))
                reason = Request("refused", {"reason": str(error)}, {})
                self.refusals[connection.node] = self.send(connection.node, reason)
                continue
            again = " again" if client in self.members else ""
            evaluates, shares = (answer.facts.get(name) is True for name in ("evaluates", "shares"))
            self.members[client] = Member(connection, samples, evaluates, shares)
            self.say(f"client {client} is connected{again}: {samples} samples")
            self.events(
                "connect",
                client=client,
                samples=samples,
                again=bool(again),
                evaluates=evaluates,
                shares=shares,
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
            numbers = {client: member.connection.node for client, member in self.members.items()}
            self.events("seen", times={c: times[node] for c, node in numbers.items() if node in times})
        for client, member in self.members.items():
            if member.online and nodes.get(member.connection.node) != member.connection.activated:
                member.online = False
                self.say(f"client {client} has disconnected")
                self.events("disconnect", client=client)

    def wait_for(self, clients: Sequence[int]) -> None:
        """Wait until these clients are connected."""
        reminded = time.monotonic()
        while missing := [client for client in clients if client not in self.members]:
            self.update()
            if time.monotonic() - reminded > REMINDER_SECONDS:
                reminded = time.monotonic()
                self.say(f"waiting for {clients_text(missing)}")
            time.sleep(PAUSE_SECONDS)

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        """Send each client its message, and wait for the replies, at most until the deadline."""
        open_round, start, reminded = OpenRound(), time.monotonic(), time.monotonic()
        while len(open_round.replies) < len(clients):
            self.update()
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
        for client, number in open_round.numbers.items():
            if client not in open_round.replies:
                self.link.withdraw(number)
                open_round.replies[client] = LATE
        if answered < min(self.settings.enough, len(clients)):
            return dict.fromkeys(clients, "round skipped: too few answers by the deadline")
        return open_round.replies

    @property
    def evaluating(self) -> frozenset[int]:
        """The clients that have a validation set."""
        return frozenset(client for client, member in self.members.items() if member.evaluates)

    @property
    def sharing(self) -> frozenset[int]:
        """The clients that share the metrics on their validation sets."""
        return frozenset(client for client in self.evaluating if self.members[client].shares)

    def reach_evaluating(self, request: Callable[[int, bool], Request]) -> Mapping[int, Content | str]:
        """Send each connected client with a validation set its message; return the replies."""
        return self.reach([c for c in self.connected() if c in self.evaluating], request)

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
            self.update()
            late = self.settings.deadline is not None and time.monotonic() - start > self.settings.deadline
            present = () if late else self.connected()
            for client in waiting:
                if client not in present and client not in open_round.replies:
                    self.link.withdraw(open_round.numbers[client])
                    open_round.replies[client] = LATE if late else "it has disconnected"
            waiting = [client for client in waiting if client not in open_round.replies]
            time.sleep(PAUSE_SECONDS)
        return dict(sorted(open_round.replies.items()))

    def connected(self) -> list[int]:
        """The clients whose connections are alive."""
        nodes = self.link.nodes()
        return [
            client
            for client, member in sorted(self.members.items())
            if nodes.get(member.connection.node) == member.connection.activated
        ]

    def is_over(self, start: float, answers: int) -> bool:
        """Whether the deadline has passed, and the round does not wait for more answers."""
        enough, deadline, skip = self.settings
        return deadline is not None and time.monotonic() - start > deadline and (skip or answers >= enough)

    def deliver(self, client: int, request: Callable[[int, bool], Request], open_round: OpenRound) -> None:
        """Send a client its message, also again if it has connected again."""
        member = self.members.get(client)
        if member is None or open_round.connections.get(client) == member.connection:
            return
        if client in open_round.numbers:
            self.link.withdraw(open_round.numbers[client])
        order = request(client, member.new)
        open_round.numbers[client] = self.send(member.connection.node, order)
        self.events("order", client=client, bytes=tensor_bytes(order.tensors), message=order.kind)
        open_round.connections[client] = member.connection

    def collect(self, client: int, open_round: OpenRound) -> None:
        """Take a client's reply, if it has arrived."""
        record = self.link.receive(open_round.numbers[client]) if client in open_round.numbers else None
        if record is None:
            return
        self.members[client].new = False
        try:
            content = from_record(record)
            open_round.replies[client] = content
            self.events("reply", client=client, bytes=content.nbytes)
        except MessageError as error:
            open_round.replies[client] = str(error)

    def dismiss(self, reason: str) -> None:
        """Send the end of the training to all connected clients; wait briefly until they have read it."""
        request = Request("end", {"reason": reason}, {})
        numbers = [self.send(member.connection.node, request) for member in self.members.values()]
        deadline = time.monotonic() + FAREWELL_SECONDS
        while numbers and time.monotonic() < deadline:
            numbers = [number for number in numbers if self.link.receive(number) is None]
            time.sleep(PAUSE_SECONDS)


def clients_text(clients: Sequence[int]) -> str:
    """The clients in words."""
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, clients))}"
