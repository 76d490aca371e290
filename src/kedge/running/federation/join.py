"""The client of a federation: it connects to the server, and trains on its own data when an order arrives."""

import time
from collections.abc import Callable
from contextlib import suppress

from kedge.core.errors import DataError, RequestError
from kedge.engines.flower.messages import Content, Facts, MessageError, Request, from_record, to_record
from kedge.engines.flower.supernode import Disconnected, Refused, SuperNode
from kedge.nn.precision import computing_in
from kedge.running.federation.agreement import facts_to_compare
from kedge.running.federation.introduction import answer, read_labels
from kedge.running.federation.site import Site, SiteRun, run_lines, run_of
from kedge.running.federation.uploads import explanation
from kedge.running.federation.validation import obey

FIRST_PAUSE_SECONDS, PAUSE_SECONDS = 0.2, 5.0  # between two attempts to connect
REFUSED_SECONDS = 30.0  # the server notices within 20 that an old connection of the client has ended


def join(site: Site, say: Callable[[str], None]) -> str:
    """Take part until the training has ended; return the server's last message."""
    client, pause, since = Client(site, say), FIRST_PAUSE_SECONDS, time.monotonic()
    while True:
        try:
            with SuperNode(site.address, site.credentials) as node:
                say(f"connected to {site.address}")
                pause, since = FIRST_PAUSE_SECONDS, time.monotonic()
                return client.work(node)
        except (Disconnected, Refused) as error:
            check_hopeful(site, error, time.monotonic() - since)
            if pause == FIRST_PAUSE_SECONDS:
                say(f"no connection to {site.address} ({error}); trying again")
        time.sleep(pause)
        pause = min(PAUSE_SECONDS, 1.5 * pause)


def check_hopeful(site: Site, error: Disconnected | Refused, seconds: float) -> None:
    """Raise if there is no hope that the server will accept this client, or after its patience."""
    if "certificate verify failed" in str(error).lower():
        raise RequestError(
            f"{site.address} does not prove that it is your server ({error}). Check the address, and that "
            "client and server have credentials of the same kedge serve --init."
        ) from error
    if isinstance(error, Refused) and seconds > min(REFUSED_SECONDS, site.patience):
        raise RequestError(
            f"{site.address} does not accept this client's key ({error}). The key is not registered there, "
            "or another process uses it: ask the server's operator for the client's folder of credentials."
        ) from error
    if seconds > site.patience:
        raise OSError(f"no connection to {site.address} for {site.patience:.0f} s: {error}") from error


class Client:
    """Answers the server's messages."""

    def __init__(self, site: Site, say: Callable[[str], None]) -> None:
        self.site, self.say = site, say
        self.run: SiteRun | None = None
        self.failure: Exception | None = None  # the reason why this client cannot take part

    def work(self, node: SuperNode) -> str:
        """Answer messages until the server says that the training has ended."""
        while True:
            message = node.receive()
            content = from_record(message.content)
            if content.kind == "task" and self.site.explain:
                self.run = run_of(self.site, content, None)
                return "\n".join(explanation(self.run.task, self.run.member))
            if content.kind in ("end", "refused"):
                with suppress(Disconnected):  # the server may have ended already
                    node.reply(message, to_record("read", {}, {}))
            if content.kind == "end":
                return self.end_text(content.text("reason"))
            if content.kind == "refused":
                raise RequestError(
                    f"the server has refused this client: {content.text('reason').rstrip('.')}."
                )
            reply = self.reply(content)
            node.reply(message, to_record(reply.kind, reply.facts, reply.tensors))
            if self.failure is not None:
                raise self.failure

    def reply(self, content: Content) -> Request:
        """The reply to a message; an order that cannot be followed is answered with the reason."""
        if content.kind == "task":
            return self.introduce(content)
        if content.kind not in ("train", "evaluate") or self.run is None:
            return Request("failed", {"reason": f"a message of kind {content.kind!r} is not expected"}, {})
        try:
            with computing_in(self.run.task.precision):
                reply = obey(self.run.engine, self.run.validation, content, self.say)
        except MessageError as error:
            return Request("failed", {"reason": str(error)}, {})
        if reply.kind == "upload":
            self.say(f"round {content.integer('round') + 1}: {round_text(reply.facts)}")
        return reply

    def introduce(self, content: Content) -> Request:
        """The answer to an introduction; if this client cannot take part, the reason is sent, too."""
        before = self.run
        try:
            self.run = run_of(self.site, content, before)
        except (RequestError, DataError, MessageError) as error:
            self.failure = error
            return Request("failed", {"reason": f"client {self.site.client}: {error}"}, {})
        if self.run is not before:
            for line in run_lines(self.run, self.site, read_labels(content)):
                self.say(line)
        self.run.engine.forget()
        return answer(self.run.member, facts_to_compare(self.run.experiment, self.run.task))

    def end_text(self, reason: str) -> str:
        """The last line for the site."""
        file = self.run.validation.file if self.run else None
        return f"{reason}; your metrics are in {file}" if file and file.is_file() else reason


def round_text(facts: Facts) -> str:
    """The result of a round for the site."""
    if facts["rejected"]:
        return f"not used: {facts['rejected']}"
    return f"loss {facts['loss']:.4f}" if "loss" in facts else "trained"
