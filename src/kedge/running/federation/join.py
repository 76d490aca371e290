"""The client of a federation: it connects to the server, and trains on its own data when an order arrives."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kedge.config.assemble import assemble
from kedge.config.experiment import Experiment
from kedge.config.federations import federation_of
from kedge.config.task import Task
from kedge.core.errors import DataError, RequestError
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.data.npz_files import npz_arrays
from kedge.engines.flower.client_engine import ClientEngine
from kedge.engines.flower.client_memory import ClientMemory
from kedge.engines.flower.messages import Content, MessageError, Request, from_record, to_record
from kedge.engines.flower.supernode import Credentials, Disconnected, Refused, SuperNode
from kedge.nn.precision import computing_in
from kedge.running.federation.introduction import DataForm, answer, fingerprints, read_experiment, read_form
from kedge.running.federation.uploads import explanation

FIRST_PAUSE_SECONDS, PAUSE_SECONDS = 0.2, 5.0  # between two attempts to connect
RUN_DIGITS = 12  # of the run's digest in the name of a memory's folder
REFUSED_SECONDS = 30.0  # the server notices within 20 that an old connection of the client has ended


@dataclass(frozen=True)
class Site:
    """A client's own settings; none of them is chosen by the server."""

    address: str
    client: int
    memory: Path  # the folder of the client's memory
    data: Path | None = None  # an npz file with x and y; None: the experiment's own data of this client
    experiment: Experiment | None = None  # the site's own copy; the server's must be equal
    credentials: Credentials = Credentials()
    patience: float = 600.0  # seconds without a server, after which the client ends
    explain: bool = False  # report the uploads and end, before the server counts this client


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
        self.run = ""  # the digest of the run's identity
        self.engine: ClientEngine | None = None
        self.task: Task | None = None
        self.failure: Exception | None = None  # the reason why this client cannot take part

    def work(self, node: SuperNode) -> str:
        """Answer messages until the server says that the training has ended."""
        while True:
            message = node.receive()
            content = from_record(message.content)
            if content.kind == "task" and self.site.explain:
                self.prepare(content)
                assert self.task is not None
                return "\n".join(explanation(self.task))
            if content.kind in ("end", "refused"):
                with suppress(Disconnected):  # the server may have ended already
                    node.reply(message, to_record("read", {}, {}))
            if content.kind == "end":
                return content.text("reason")
            if content.kind == "refused":
                raise RequestError(f"the server has refused this client: {content.text('reason')}.")
            reply = self.reply(content)
            node.reply(message, to_record(reply.kind, reply.facts, reply.tensors))
            if self.failure is not None:
                raise self.failure

    def reply(self, content: Content) -> Request:
        """The reply to a message; an order that cannot be followed is answered with the reason."""
        if content.kind == "task":
            return self.introduce(content)
        if content.kind != "train" or self.engine is None or self.task is None:
            return Request("failed", {"reason": f"a message of kind {content.kind!r} is not expected"}, {})
        try:
            with computing_in(self.task.precision):
                reply = self.engine.train(content)
        except MessageError as error:
            return Request("failed", {"reason": str(error)}, {})
        self.say(f"round {content.integer('round') + 1}: {outcome(reply)}")
        return reply

    def introduce(self, content: Content) -> Request:
        """The answer to an introduction; if this client cannot take part, the reason is sent, too."""
        try:
            return self.prepare(content)
        except (RequestError, DataError, MessageError) as error:
            self.failure = error
            return Request("failed", {"reason": f"client {self.site.client}: {error}"}, {})

    def prepare(self, content: Content) -> Request:
        """Make the task of an introduction, and return the answer."""
        experiment = read_experiment(content, self.site.experiment)
        if self.engine is None or self.task is None or self.run != content.text("run"):
            data = self.data(experiment, read_form(content))
            torch.set_num_threads(experiment.engine.threads or torch.get_num_threads())
            self.task = assemble(experiment, federation=data)
            self.run = content.text("run")
            folder = self.site.memory / self.run[:RUN_DIGITS]  # one for each run
            memory = ClientMemory(folder, self.run, self.site.client)
            task = self.task
            self.engine = ClientEngine(
                task.model, task.stages, task.federation, task.seed, memory, task.privacy.active
            )
        self.engine.forget()
        samples = len(self.task.federation.clients[0])
        if not samples:
            raise DataError(f"client {self.site.client} has no samples.")
        sent = None if self.task.privacy.active else samples
        return answer(self.site.client, sent, fingerprints(experiment, self.task))

    def data(self, experiment: Experiment, form: DataForm) -> Federation:
        """The federation of this client only."""
        if self.site.data is None:
            return simulated_client(federation_of(experiment), self.site.client)
        return federation_of_file(self.site.data, form)


def outcome(reply: Request) -> str:
    """A sentence on an upload; a private run's has no loss."""
    if reply.facts.get("rejected"):
        return str(reply.facts["rejected"])
    return f"loss {reply.facts['loss']}" if "loss" in reply.facts else "trained"


def simulated_client(data: Federation, client: int) -> Federation:
    """The data of one client of a simulated federation."""
    if client >= len(data.clients):
        raise RequestError(f"--client {client}: the experiment has the clients 0 to {len(data.clients) - 1}.")
    return replace(data, clients=(data.clients[client],), local_tests=(data.local_tests[client],))


def federation_of_file(path: Path, form: DataForm) -> Federation:
    """The federation of one client with the samples x and y of an npz file."""
    arrays: dict[str, Any] = npz_arrays(path, ("x", "y"))
    data = Dataset(arrays["x"], arrays["y"])
    shape, labels = tuple(data.x.shape[1:]), int(data.y.max())
    if shape != form.shape:
        raise DataError(f"{path}: x has samples of shape {shape}; the federation's have {form.shape}.")
    if labels >= form.classes:
        raise DataError(
            f"{path}: y has the label {labels}; the federation has the labels 0 to {form.classes - 1}."
        )
    empty = np.empty(0, dtype=np.int64)
    return Federation(
        pool=data,
        clients=(np.arange(len(data), dtype=np.int64),),
        local_tests=(empty,),
        test=None,
        classes=form.classes,
        scale=form.scale,
        mean=form.mean,
        std=form.std,
        dtype=torch.float32,
    )
