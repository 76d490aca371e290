"""The server of a federation: the runner's loop, with an engine that sends orders over the network."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.engines.flower.members import Members, Settings
from kedge.engines.flower.messages import Content, MessageError
from kedge.engines.flower.server_engine import NORM_LIMIT, Population, ServerEngine, Traffic
from kedge.engines.flower.superlink import Certificate, SuperLink
from kedge.measure.settings import Measure
from kedge.nn.precision import computing_in
from kedge.running.engine_settings import (
    FEDERATION,
    preserve_thread_count,
    read_engine_settings,
    write_environment,
)
from kedge.running.execute import create_run, load_run
from kedge.running.federation.introduction import check_answer, fingerprints, introduction
from kedge.running.federation.joined_clients import roster_of, sizes_only
from kedge.running.federation.private_uploads import private_rules
from kedge.running.federation.uploads import upload_templates
from kedge.running.folders.folder import locked
from kedge.running.progress import Observer, Progress
from kedge.running.runner import run


@dataclass(frozen=True)
class Server:
    """The address, the security and the patience of a server."""

    host: str = "127.0.0.1"
    port: int = 8474
    certificate: Certificate | None = None  # None: no TLS
    keys: dict[bytes, int] | None = None  # public key -> client; None: no authentication
    least: int = 1  # answers that a round needs at its deadline
    deadline: float | None = None  # seconds
    norm_limit: float = NORM_LIMIT  # times the median of the round's norms
    skip: bool = False  # end a round without an update if too few have answered at the deadline
    start_with: int | None = None  # clients that must have connected before the first round; None: all

    def __post_init__(self) -> None:
        if self.certificate is None and self.host not in ("127.0.0.1", "localhost", "::1"):
            raise RequestError(
                f"--insecure with the address {self.host}: without TLS everyone on the network could read "
                "and change the models. Listen on 127.0.0.1, or make certificates: kedge serve --init DIR."
            )


def serve(experiment: Experiment, folder: Path, server: Server, observer: Observer, force: bool) -> Progress:
    """Train an experiment with clients on other machines, in a new folder."""
    check_federated(experiment)
    experiment = replace(experiment, engine=replace(experiment.engine, device="cpu"))
    with ExitStack() as locks:
        task = create_run(experiment, folder, force, locks)
        return train(task, experiment, folder, server, observer)


def resume_serving(folder: Path, server: Server, observer: Observer) -> Progress:
    """Continue the training of a server that was stopped or killed."""
    with locked(folder):
        settings = read_engine_settings(folder)
        if settings is not None and settings["name"] != FEDERATION:
            raise RequestError(
                f"{folder} is a run of kedge run: its checkpoints have the clients' memories. Continue it "
                f"with kedge run --resume {folder}, or serve its config.toml in a new folder."
            )
        experiment, task = load_run(folder)
        return train(task, experiment, folder, server, observer)


def check_federated(experiment: Experiment) -> None:
    """Raise if an experiment needs what a federation does not have."""
    if experiment.evaluation.all or experiment.measure != Measure():
        raise RequestError(
            "evaluation.all and the table [measure] need the memories of all clients, which stay with the "
            "clients in a federation. Set evaluation.all = false and leave [measure] out, or simulate with "
            "kedge run."
        )


def train(task: Task, experiment: Experiment, folder: Path, server: Server, observer: Observer) -> Progress:
    """Wait for the clients, and train the remaining rounds."""
    clients, prints = len(task.federation.clients), fingerprints(experiment, task)
    check_start(server.start_with, clients)
    settings = Settings(server.least, server.deadline, server.skip)
    with (
        computing_in(task.precision),
        preserve_thread_count(),
        SuperLink(server.host, server.port, server.certificate, server.keys is not None) as link,
    ):
        torch.set_num_threads(experiment.engine.threads or torch.get_num_threads())
        nodes = {link.admit(key): client for key, client in (server.keys or {}).items()}
        roster = roster_of(folder)

        def admit(node: int, answer: Content) -> int:
            client = check_answer(answer, prints, clients)
            check_owner(client, nodes.get(node))
            roster.join(client, 0 if task.privacy.active else answer.integer("samples"))
            return client

        members = Members(link, introduction(experiment, task), admit, settings, observer.say)
        observer.say(f"listening on {link.address} for {clients} clients")
        if not roster.started:
            members.wait_for(server.start_with or clients)
            roster.start()
        templates, rules = upload_templates(task), private_rules(task)
        task = replace(federated(task), federation=sizes_only(task.federation, roster))
        population = Population(clients, roster, templates, server.norm_limit, rules)
        engine = ServerEngine(task.model, task.stages, population, members, observer.say)
        engine_settings = {
            "name": FEDERATION,
            "compiled": False,
            "chunk": 0,
            "threads": torch.get_num_threads(),
        }
        write_environment(folder, task, engine_settings)
        progress = run(task, engine, folder, 1, engine_settings, observer)
        members.dismiss("the training has ended")
        if not task.privacy.active:
            observer.say(traffic_text(engine.traffic, link.traffic()))
        return progress


def check_owner(client: int, owner: int | None) -> None:
    """Raise MessageError if a client is not the owner of its key."""
    if owner is not None and owner != client:
        raise MessageError(f"client {client} uses the key of client {owner}")


def check_start(start_with: int | None, clients: int) -> None:
    """Raise if the training could never start."""
    if start_with is not None and start_with > clients:
        raise RequestError(
            f"--start-with {start_with}: the experiment has {clients} clients. Give a number from 1 to "
            f"{clients}, or leave it out to wait for all."
        )


def traffic_text(arrays: Traffic, flower: tuple[int, int]) -> str:
    """The bytes that this process has sent and received, as a sentence."""
    return (
        f"sent {arrays.down:,} bytes of arrays ({flower[0]:,} with Flower's framing), received {arrays.up:,} "
        f"({flower[1]:,}); HTTP and TLS are not counted"
    )


def federated(task: Task) -> Task:
    """The task with the settings of a federation: an upload that cannot be used is left out."""
    source: Literal["seed", "system"] = "system" if task.privacy.active else "seed"
    return replace(task, on_divergence="drop", tune="off", noise_source=source)
