"""SuperLink: Flower's server in a thread of this process; it delivers messages to nodes and collects replies.

Only the Fleet API, which the nodes use, can be reached from the network. The other parts of Flower's
application could start runs and send messages in kedge's name; requests to them get the answer 404.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import uvicorn

from kedge.engines.flower.flwr_private import (
    HEARTBEAT_PATIENCE,
    NOOP_ACCOUNT_NAME,
    NOOP_FEDERATION_ID,
    NOOP_FLWR_AID,
    InMemoryLinkState,
    Message,
    NodeStatus,
    RecordDict,
    TaskIdentity,
    TaskType,
    create_app,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    no_object_id_recompute,
    remove_content_from_message,
)

FLEET = "/v1/fleet/"
SERVER_NODE = 1
START_SECONDS = 30.0
LIFETIME_SECONDS = 30 * 24 * 3600.0  # of a message; the server withdraws it much earlier
TASK_HEARTBEAT_SECONDS = 10.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Certificate(NamedTuple):
    """The files of the server's certificate and of its private key."""

    certificate: Path
    key: Path


class RefusingState(InMemoryLinkState):
    """Flower's state, which remembers the replies that it does not accept.

    The web server's thread stores replies, and the thread of the training takes the number of the refused.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.refused: Counter[int] = Counter()  # node -> its replies that no message waited for

    def store_message_res(self, message: Message) -> str | None:
        stored = super().store_message_res(message)
        if stored is None:
            with self.lock:
                self.refused[message.metadata.src_node_id] += 1
        return stored

    def take_refused(self) -> dict[int, int]:
        """The numbers of refused replies since the last call, by node."""
        with self.lock:
            refused, self.refused = self.refused, Counter()
        return dict(refused)


class FleetOnly:
    """A web application that answers 404 to every request that is not of the Fleet API."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(FLEET):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)


class SuperLink:
    """Flower's SuperLink, with one run; a context manager.

    A thread runs the web server, and another keeps the run alive. All methods are called by the thread of
    the training.
    """

    def __init__(self, host: str, port: int, certificate: Certificate | None, authenticate: bool) -> None:
        """With `authenticate`, only nodes whose keys `admit` has registered can connect."""
        app = create_app()
        app.state.enable_supernode_auth = authenticate
        factory = app.state.linkstate_factory
        self.state = RefusingState(factory.federation_manager, factory.objectstore_factory.store())
        factory.state_instance = self.state
        config = uvicorn.Config(
            FleetOnly(app),
            host,
            port,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            ssl_certfile=certificate.certificate if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
        )
        self.address = f"{host}:{port}"
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.serve, name="kedge-superlink", daemon=True)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.arriving: dict[str, Message] = {}  # replies whose tensors are not complete yet

    def __enter__(self) -> Self:
        self.thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.server.started:
            if not self.thread.is_alive() or time.monotonic() > deadline:
                raise OSError(f"cannot listen on {self.address}: {self.failure or 'no answer'}")
            time.sleep(0.02)
        self.start_run()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(timeout=5)

    def serve(self) -> None:
        """Run the web server until `should_exit`; the thread's function."""
        try:
            asyncio.run(self.server.serve())
        except (Exception, SystemExit) as error:
            self.failure = error

    def start_run(self) -> None:
        """Create Flower's record of the run, without which no message can be sent."""
        self.run = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        assert task is not None
        self.state.claim_task(task)
        self.state.activate_task(task)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, SERVER_NODE, task
        threading.Thread(target=self.keep_alive, args=[task], name="kedge-run", daemon=True).start()

    def keep_alive(self, task: int) -> None:
        """Renew the run's lease until the server stops; the function of a thread."""
        while not self.stopping.wait(TASK_HEARTBEAT_SECONDS):
            self.state.acknowledge_task_heartbeat(task)

    def admit(self, public_key: bytes) -> int:
        """Register a node's public key; return the number of the node."""
        return self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0)

    def nodes(self) -> dict[int, str]:
        """The connected nodes, and the time at which each was activated."""
        found = self.state.get_node_info(statuses=[NodeStatus.ONLINE])
        return {node.node_id: str(node.last_activated_at) for node in found}

    def last_seen(self) -> dict[int, float]:
        """The time of each connected node's last sign of life, in seconds since 1970."""
        found = self.state.get_node_info(statuses=[NodeStatus.ONLINE])
        return {
            node.node_id: node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval for node in found
        }

    def traffic(self) -> tuple[int, int]:
        """The bytes to and from the nodes as Flower counts them: arrays and framing, without HTTP and TLS."""
        run = self.state.get_run_info(run_ids=[self.run])[0]
        return run.bytes_sent, run.bytes_recv

    def send(self, node: int, record: RecordDict) -> str:
        """Send a message to a node; return its number."""
        message = Message(record, node, "query", ttl=LIFETIME_SECONDS)
        with no_object_id_recompute():
            number = str(message.object_id)
            message.metadata.__dict__["_message_id"] = number
            session = self.state.start_session(self.run)
            # Without its content, which the node fetches part by part: else it would be sent twice.
            stored, missing = self.state.store_message_and_object_tree(
                remove_content_from_message(message), get_object_tree(message), session
            )
            if not stored:
                raise OSError(f"Flower did not accept a message to node {node}")
            objects = get_all_nested_objects(message)
            for name in missing:
                self.state.store_object(self.run, session, name, objects[name].deflate())
        return number

    def receive(self, number: str) -> RecordDict | None:
        """The reply to a message; None while it is not complete."""
        if number not in self.arriving:
            found = self.state.get_message_res(message_ids={number}, run_id=self.run)
            if not found or found[0].has_error():
                return None
            self.arriving[number] = found[0]
        name = self.arriving[number].metadata.message_id
        tree = self.state.object_store.get_object_tree(name)
        contents = {}
        for part in iterate_object_tree(tree):
            content = self.state.get_object(self.run, part.object_id)
            if not content:
                return None
            contents[part.object_id] = content
        message = inflate_object_from_contents(name, contents)
        self.withdraw(number)
        assert isinstance(message, Message)
        return message.content

    def refused(self) -> dict[int, int]:
        """For each node, the number of replies that no message waited for, since the last call."""
        return self.state.take_refused()

    def withdraw(self, number: str) -> None:
        """Delete a message and its reply."""
        reply = self.arriving.pop(number, None)
        self.state.delete_messages(message_ins_ids={number})
        for name in (number, reply.metadata.message_id if reply else None):
            if name is not None:
                self.state.object_store.delete(name)
