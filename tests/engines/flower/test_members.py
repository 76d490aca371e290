"""The exchange of a round: deadlines, clients that connect again, and answers that are no messages."""

from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("flwr")

from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.flwr_private import RecordDict
from kedge.engines.flower.member_exchange import MemberExchange, Settings
from kedge.engines.flower.members import Members
from kedge.engines.flower.messages import Content, MessageError, Request, from_record, to_record
from kedge.engines.flower.superlink import SuperLink

INTRODUCTION = Request("task", {}, {})
Answer = Callable[[Content], RecordDict | None]


class FakeLink:
    """A SuperLink whose nodes answer at once, by a function, or never."""

    def __init__(self, nodes: dict[int, Answer]) -> None:
        self.answers = nodes
        self.activated = dict.fromkeys(nodes, "first")
        self.replies: dict[str, RecordDict | None] = {}
        self.kinds: list[tuple[int, str]] = []
        self.withdrawn: list[str] = []

    def nodes(self) -> dict[int, str]:
        return self.activated

    def last_seen(self) -> dict[int, float]:
        return dict.fromkeys(self.activated, 0.0)

    def send(self, node: int, record: RecordDict) -> str:
        number, content = str(len(self.kinds)), from_record(record)
        self.kinds.append((node, content.kind))
        member = to_record("member", {"client": node, "samples": 10 + node}, {})
        self.replies[number] = member if content.kind == "task" else self.answers[node](content)
        return number

    def receive(self, number: str) -> RecordDict | None:
        return self.replies[number]

    def refused(self) -> dict[int, int]:
        return {}

    def withdraw(self, number: str) -> None:
        self.withdrawn.append(number)


def connecting(link: FakeLink, events: Events = SILENT) -> Members:
    def admit(node: int, answer: Content) -> int:
        return answer.integer("client")

    return Members(cast(SuperLink, link), INTRODUCTION, admit, lambda text: None, events)


def members(link: FakeLink, settings: Settings, events: Events = SILENT) -> MemberExchange:
    """The exchange with clients that have all connected."""
    made = connecting(link, events)
    made.wait_for(len(link.answers))
    return MemberExchange(made, settings, lambda text: None, events)


def upload(content: Content) -> RecordDict:
    return to_record("upload", content.facts, {})


def silent(content: Content) -> None:
    return None


def order(client: int, new: bool) -> Request:
    return Request("train", {"client": client, "new": new}, {})


def test_a_round_has_the_answers_of_all_clients_and_only_the_first_order_is_to_a_new_client() -> None:
    exchange = members(FakeLink({0: upload, 1: upload}), Settings(2))
    assert [member.samples for member in exchange.members.clients.values()] == [10, 11]
    for new in (True, False):
        replies: Any = exchange([0, 1], order)
        assert {client: reply.facts["new"] for client, reply in replies.items()} == {0: new, 1: new}


def test_a_silent_client_is_left_out_at_the_deadline() -> None:
    link = FakeLink({0: upload, 1: silent, 2: upload})
    replies = members(link, Settings(2, deadline=0.1))([0, 1, 2], order)
    assert replies[1] == "no answer by the deadline"
    assert isinstance(replies[0], Content)
    assert len(link.withdrawn) == 1


def test_a_round_with_too_few_answers_is_skipped_if_the_server_says_so() -> None:
    link = FakeLink({0: upload, 1: silent, 2: silent})
    replies = members(link, Settings(2, deadline=0.1, skip=True))([0, 1, 2], order)
    assert set(replies.values()) == {"round skipped: too few answers by the deadline"}


def test_a_client_that_connects_again_receives_its_order_again_as_a_new_client() -> None:
    link = FakeLink({0: upload, 1: silent})
    received: list[tuple[int, bool]] = []

    def die(content: Content) -> None:
        link.activated[1], link.answers[1] = "again", upload  # another process connects

    def recorded(client: int, new: bool) -> Request:
        received.append((client, new))
        return order(client, new)

    exchange = members(link, Settings(2))
    link.answers[1] = die
    replies = exchange([0, 1], recorded)
    assert received == [(0, True), (1, True), (1, True)]
    assert all(isinstance(reply, Content) for reply in replies.values())
    assert [kind for node, kind in link.kinds if node == 1] == ["task", "train", "task", "train"]
    assert len(link.withdrawn) == 1


def test_an_answer_that_is_no_message_is_left_out_with_the_reason() -> None:
    replies = members(FakeLink({0: lambda content: RecordDict({})}), Settings(1))([0], order)
    assert replies == {0: "its records are none, not facts and tensors"}


def test_a_client_that_starts_again_does_not_read_the_messages_to_its_last_process() -> None:
    link, refusing = FakeLink({0: upload}), True

    def admit(node: int, answer: Content) -> int:
        if refusing:
            raise MessageError("no")
        return answer.integer("client")

    connected = Members(cast(SuperLink, link), INTRODUCTION, admit, lambda text: None)
    connected.update()
    assert link.kinds == [(0, "task"), (0, "refused")]
    refusing, link.activated[0] = False, "again"
    connected.update()
    assert link.withdrawn == ["1"]
    assert connected.connected() == [0]


def evaluating_members(link: FakeLink, settings: Settings) -> MemberExchange:
    """Connected clients; all except the first have a validation set."""
    exchange = members(link, settings)
    for client in list(exchange.members.clients)[1:]:
        exchange.members.clients[client].evaluates = True
    return exchange


def test_an_evaluation_reaches_the_clients_with_a_validation_set_that_are_connected() -> None:
    link = FakeLink({0: upload, 1: upload, 2: upload, 3: upload})
    exchange = evaluating_members(link, Settings(1))
    del link.activated[2]
    assert exchange.evaluating == {1, 2, 3}
    assert list(exchange.reach_evaluating(order)) == [1, 3]


def test_an_evaluation_does_not_wait_for_a_client_that_disconnects_or_is_late() -> None:
    link = FakeLink({0: upload, 1: upload, 2: silent})
    exchange = evaluating_members(link, Settings(1, deadline=0.1))
    replies = exchange.reach_evaluating(order)
    assert isinstance(replies[1], Content)
    assert replies[2] == "no answer by the deadline"

    def leave(content: Content) -> None:
        del link.activated[2]

    link.answers[2] = leave
    exchange = evaluating_members(link, Settings(1))
    assert exchange.reach_evaluating(order)[2] == "it has disconnected"
    assert len(link.withdrawn) == 2


def test_connections_and_their_ends_are_events() -> None:
    events: list[tuple[str, int]] = []

    def listen(kind: str, facts: dict[str, Any]) -> None:
        if "client" in facts:
            events.append((kind, facts["client"]))

    link = FakeLink({0: upload, 1: upload})
    exchange = members(link, Settings(2), Events(listen))
    exchange([0, 1], order)
    del link.activated[1]
    exchange.members.update()
    link.activated[1] = "again"
    exchange.members.update()
    assert events == [
        ("connect", 0), ("connect", 1), ("order", 0), ("reply", 0), ("order", 1), ("reply", 1),
        ("disconnect", 1), ("connect", 1),
    ]  # fmt: skip
