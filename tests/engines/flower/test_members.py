"""The exchange of a round: deadlines, clients that connect again, and answers that are no messages."""

from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("flwr")

from kedge.engines.flower.flwr_private import RecordDict
from kedge.engines.flower.members import Members, Settings
from kedge.engines.flower.messages import Content, Request, from_record, to_record
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


def members(link: FakeLink, settings: Settings) -> Members:
    def admit(node: int, answer: Content) -> int:
        return answer.integer("client")

    made = Members(cast(SuperLink, link), INTRODUCTION, admit, settings, lambda text: None)
    made.wait_for(len(link.answers))
    return made


def upload(content: Content) -> RecordDict:
    return to_record("upload", content.facts, {})


def silent(content: Content) -> None:
    return None


def order(client: int, new: bool) -> Request:
    return Request("train", {"client": client, "new": new}, {})


def test_a_round_has_the_answers_of_all_clients_and_only_the_first_order_is_to_a_new_client() -> None:
    exchange = members(FakeLink({0: upload, 1: upload}), Settings(2))
    assert [member.samples for member in exchange.members.values()] == [10, 11]
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
