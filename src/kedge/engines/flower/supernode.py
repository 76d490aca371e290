"""SuperNode: a client's connection to the server, by Flower's Fleet API.

The node requests messages: the server never connects to a client. Flower's own loop waits three seconds
between two requests and ends its process when the server restarts; this one waits at most `PAUSE_SECONDS`,
and registers again.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

from kedge.engines.flower.flwr_private import (
    HEARTBEAT_MIN_INTERVAL,
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    Message,
    Node,
    NodeAuthHttpInterceptor,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    RecordDict,
    RegisterNodeFleetRequest,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    generate_key_pairs,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    message_from_proto,
    message_to_proto,
    no_object_id_recompute,
    public_key_to_bytes,
    remove_content_from_message,
)

FIRST_PAUSE_SECONDS, PAUSE_SECONDS = 0.02, 0.5  # between two requests for a message
HEARTBEAT_SECONDS = 4.0
TRANSFERS = 4  # parts of a message that are sent at once, so that latency is not multiplied by their number
OBJECT_TRIES = 200  # for a tensor that the server is still storing


class Credentials(NamedTuple):
    """A client's keys (None: new keys), the authority's certificate (None: no TLS), a file for its node.

    A client that was killed is still connected in the server's eyes. `node_file` has the number of its node,
    so that it can end that connection when it starts again.
    """

    keys: tuple[EllipticCurvePrivateKey, EllipticCurvePublicKey] | None = None
    root_certificate: Path | None = None
    node_file: Path | None = None


class Disconnected(ConnectionError):
    """The server does not answer, or no longer knows this node."""


class Refused(PermissionError):
    """The server does not accept this node."""


class SuperNode:
    """A connection to the server; a context manager. A thread sends heartbeats."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.registers = credentials.keys is None
        self.private_key, self.public_key = credentials.keys or generate_key_pairs()
        root = credentials.root_certificate
        self.client = FleetHttpClient.from_server_address(
            address,
            insecure=root is None,
            root_certificates=root.read_bytes() if root else None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self.private_key, self.public_key),
            ],
        )
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.send_heartbeats, name="kedge-heartbeat", daemon=True)
        self.pause, self.node_file = FIRST_PAUSE_SECONDS, credentials.node_file

    def __enter__(self) -> Self:
        key = public_key_to_bytes(self.public_key)
        if self.registers:
            self.call("RegisterNode", RegisterNodeFleetRequest(public_key=key))
        else:
            self.end_old_connection()
        request = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        self.node = Node(node_id=self.call("ActivateNode", request).node_id)
        if self.node_file:
            self.node_file.parent.mkdir(parents=True, exist_ok=True)
            self.node_file.write_text(str(self.node.node_id))
        self.thread.start()
        return self

    def end_old_connection(self) -> None:
        """End the connection of the process before, if it was killed."""
        text = self.node_file.read_text() if self.node_file and self.node_file.is_file() else ""
        if text.isdigit():
            with suppress(Disconnected):  # the server has restarted, or has ended the connection
                self.call("DeactivateNode", DeactivateNodeRequest(node_id=int(text)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=HEARTBEAT_SECONDS)
            with suppress(Disconnected, Refused):  # the server notices that the heartbeats are missing
                self.call("DeactivateNode", DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()

    def call(self, method: str, request: Any) -> Any:
        """Call a method of the Fleet API; raise Disconnected or Refused if it fails."""
        try:
            return getattr(self.client, method)(request)
        except httpx.HTTPStatusError as error:
            status, text = error.response.status_code, error.response.text
            if method in ("RegisterNode", "ActivateNode"):
                raise Refused(f"{method}: {status} {text}") from error
            raise Disconnected(f"{method}: {status} {text}") from error
        except (httpx.HTTPError, OSError, RuntimeError) as error:
            raise Disconnected(f"{method}: {error}") from error

    def send_heartbeats(self) -> None:
        """Send a sign of life to the server at intervals; the thread's function."""
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        while not self.stopping.wait(HEARTBEAT_SECONDS):
            try:
                self.call("SendNodeHeartbeat", request)
            except (Disconnected, Refused):
                continue  # the next request for a message fails, too, and ends the connection

    def receive(self) -> Message:
        """Wait for the next message, and return it."""
        while True:
            found = self.call("PullMessages", PullMessagesRequest(node=self.node))
            if found.messages_list:
                self.pause = FIRST_PAUSE_SECONDS
                return self.complete(
                    message_from_proto(found.messages_list[0]), found.message_object_trees[0]
                )
            time.sleep(self.pause)
            self.pause = min(PAUSE_SECONDS, 1.5 * self.pause)

    def complete(self, message: Message, tree: Any) -> Message:
        """A message with its content, which is fetched part by part."""
        run, number = message.metadata.run_id, message.metadata.message_id
        names = list(dict.fromkeys(str(part.object_id) for part in iterate_object_tree(tree)))
        with ThreadPoolExecutor(TRANSFERS, "kedge-transfer") as pool:
            contents = dict(zip(names, pool.map(partial(self.pull, run), names), strict=True))
        self.call(
            "ConfirmMessageReceived",
            ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=number),
        )
        received = inflate_object_from_contents(number, contents)
        assert isinstance(received, Message)
        received.metadata.__dict__["_message_id"] = number
        return received

    def pull(self, run: int, name: str) -> bytes:
        """Fetch a part of a message."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=name)
        for _ in range(OBJECT_TRIES):
            found = self.call("PullObject", request)
            if not found.object_found:
                break
            if found.object_available:
                return bytes(found.object_content)
            time.sleep(FIRST_PAUSE_SECONDS)
        raise Disconnected("a part of a message is missing on the server")

    def reply(self, message: Message, record: RecordDict) -> None:
        """Send the reply to a message."""
        answer = Message(record, reply_to=message)
        with no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            objects, tree = get_all_nested_objects(answer), get_object_tree(answer)
            proto = message_to_proto(remove_content_from_message(answer))
            pushed = self.call(
                "PushMessages",
                PushMessagesRequest(node=self.node, messages_list=[proto], message_object_trees=[tree]),
            )
            requests = [
                PushObjectRequest(
                    node=self.node,
                    run_id=answer.metadata.run_id,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=pushed.session_id,
                )
                for name in pushed.objects_to_push
            ]
        with ThreadPoolExecutor(TRANSFERS, "kedge-transfer") as pool:
            list(pool.map(partial(self.call, "PushObject"), requests))  # raises the first error
