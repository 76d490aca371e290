"""Messages between Flower's SuperLink and nodes, over real connections on loopback."""

import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import torch
from tests.federation.processes import free_port

pytest.importorskip("flwr")

from kedge.engines.flower.flwr_private import RecordDict
from kedge.engines.flower.messages import from_record, tensor_bytes, to_record
from kedge.engines.flower.superlink import SuperLink
from kedge.engines.flower.supernode import Credentials, SuperNode

FRAMING = 10_000  # bytes of a message with three small tensors beside the arrays, at most
TENSORS = {"w": torch.randn(500, 100), "b": torch.randn(100), "zeros": torch.zeros(7)}


def echo(address: str, messages: int) -> None:
    """A client that sends the tensors of its messages back."""
    with SuperNode(address, Credentials()) as node:
        for _ in range(messages):
            message = node.receive()
            node.reply(message, to_record("echo", {}, from_record(message.content).tensors))


@pytest.fixture
def link() -> Iterator[SuperLink]:
    with SuperLink("127.0.0.1", free_port(), None, False) as link:
        yield link


def exchange(link: SuperLink, node: int) -> RecordDict:
    """Send TENSORS to a node, and wait for its reply."""
    number, deadline = link.send(node, to_record("do", {}, TENSORS)), time.monotonic() + 30
    while (reply := link.receive(number)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return reply


def test_messages_arrive_with_every_bit_and_are_sent_once(link: SuperLink) -> None:
    thread = threading.Thread(target=echo, args=(link.address, 2))
    thread.start()
    while not link.nodes():
        time.sleep(0.01)
    (node,) = link.nodes()
    for messages in (1, 2):
        content = from_record(exchange(link, node))
        assert all(content.tensors[k].equal(v) for k, v in TENSORS.items())
        down, up = link.traffic()
        assert messages * tensor_bytes(TENSORS) < up < messages * (tensor_bytes(TENSORS) + FRAMING)
        assert messages * tensor_bytes(TENSORS) < down < messages * (tensor_bytes(TENSORS) + FRAMING)
    thread.join(timeout=30)
    assert not link.nodes()
    assert len(link.state.object_store) == 0
    assert not link.arriving


def test_only_the_fleet_api_can_be_reached(link: SuperLink) -> None:
    for path in ("/docs", "/openapi.json", "/v1/control/start-run", "/v1/runtime/pull-messages", "/health"):
        assert httpx.post(f"http://{link.address}{path}").status_code == 404, path
    assert httpx.post(f"http://{link.address}/v1/fleet/pull-messages").status_code != 404


def test_a_withdrawn_message_leaves_nothing(link: SuperLink) -> None:
    with SuperNode(link.address, Credentials()):
        (node,) = link.nodes()
        number = link.send(node, to_record("do", {}, TENSORS))
        assert len(link.state.object_store) > 0
        link.withdraw(number)
        assert len(link.state.object_store) == 0
