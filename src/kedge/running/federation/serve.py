"""The server of a federation: the runner's loop, with an engine that sends orders over the network."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.member_exchange import MemberExchange, Settings
from kedge.engines.flower.members import Members
from kedge.engines.flower.population import NORM_LIMIT, Population
from kedge.engines.flower.sent import Traffic
from kedge.engines.flower.server_engine import ServerEngine
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
from kedge.running.federation.admission import Admission
from kedge.running.federation.agreement import facts_to_compare
from kedge.running.federation.introduction import introduction
from kedge.running.federation.joined_clients import roster_of, sizes_only
from kedge.running.federation.labels import LabelNames, Names, names_of_labels
from kedge.running.federation.private_events import private_events, secret_say
from kedge.running.federation.private_uploads import private_rules
from kedge.running.federation.uploads import upload_templates
from kedge.running.folders.folder import locked
from kedge.running.progress import Observer, Progress
from kedge.running.recording.site_rules import check_rules, check_sharing
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
    labels: Names = ()  # the names of the classes; (): those in the experiment's npz file, if any

    def __post_init__(self) -> None:
        if self.certificate is None and self.host not in ("127.0.0.1", "localhost", "::1"):
            raise RequestError(
                f"--insecure with the address {self.host}: without TLS everyone on the network could read "
                "and change the models. Listen on 127.0.0.1, or make certificates: kedge serve --init DIR."
            )


def serve(
    experiment: Experiment,
    folder: Path,
    server: Server,
    force: bool,
    observer: Observer,
    events: Events = SILENT,
) -> Progress:
    """Train an experiment with clients on other machines, in a new folder."""
    check_federated(experiment)
    experiment = replace(experiment, engine=replace(experiment.engine, device="cpu"))
    with ExitStack() as locks:
        task = create_run(experiment, folder, force, locks)
        return train(task, experiment, folder, server, observer, events)


def resume_serving(folder: Path, server: Server, observer: Observer, events: Events = SILENT) -> Progress:
    """Continue the training of a server that was stopped or killed."""
    with locked(folder):
        settings = read_engine_settings(folder)
        if settings is not None and settings["name"] != FEDERATION:
            raise RequestError(
                f"{folder} is a run of kedge run: its checkpoints have the clients' memories. Continue it "
                f"with kedge run --resume {folder}, or serve its config.toml in a new folder."
            )
        experiment, task = load_run(folder)
        return train(task, experiment, folder, server, observer, events)


def check_federated(experiment: Experiment) -> None:
    """Raise if an experiment needs what a federation does not have."""
    if experiment.evaluation.all or experiment.measure != Measure():
        raise RequestError(
            "evaluation.all and the table [measure] need the memories of all clients, which stay with the "
            "clients in a federation. Set evaluation.all = false and leave [measure] out, or simulate with "
            "kedge run."
        )


def train(
    task: Task, experiment: Experiment, folder: Path, server: Server, observer: Observer, events: Events
) -> Progress:
    """Wait for the clients, and train the remaining rounds."""
    clients, compared = len(task.federation.clients), facts_to_compare(experiment, task)
    check_rules(task)
    check_start(server.start_with, clients)
    private = task.privacy.active
    names = names_of_labels(server.labels, experiment, task.federation.classes)
    events = private_events(events) if private else events
    say = secret_say(events) if private else observer.say  # for messages that name participants
    with (
        computing_in(task.precision),
        preserve_thread_count(),
        SuperLink(server.host, server.port, server.certificate, server.keys is not None) as link,
    ):
        torch.set_num_threads(experiment.engine.threads or torch.get_num_threads())
        nodes = {link.admit(key): client for key, client in (server.keys or {}).items()}
        roster = roster_of(folder)
        admit = Admission(task, compared, LabelNames(names, observer.say), nodes, roster)
        members = Members(link, introduction(experiment, task, names), admit, observer.say, events)
        settings = Settings(server.least, server.deadline, server.skip)
        exchange = MemberExchange(members, settings, say, events)
        facts = {"address": link.address, "clients": clients, "rounds": task.rounds}
        events("listening", **facts, joined=sorted(roster.joined), private=private)
        observer.say(f"listening on {link.address} for {clients} clients")
        if not roster.started:
            wait_for_clients(task, server.start_with or clients, exchange)
            roster.start()
        templates, rules = upload_templates(task), private_rules(task)
        task = replace(federated(task), federation=sizes_only(task.federation, roster))
        population = Population(clients, roster, templates, server.norm_limit, rules)
        engine = ServerEngine(task.model, task.stages, population, exchange, say, events)
        engine_settings = {
            "name": FEDERATION,
            "compiled": False,
            "chunk": 0,
            "threads": torch.get_num_threads(),
        }
        write_environment(folder, task, engine_settings)
        progress = run(task, engine, folder, 1, engine_settings, observer)
        members.dismiss("the training has ended")
        if private:
            events("end")  # without bytes, which would show how many clients have taken part
        else:
            report_traffic(engine.traffic, link.traffic(), observer, events)
        return progress


def wait_for_clients(task: Task, count: int, exchange: MemberExchange) -> None:
    """Wait until `count` clients are connected; if all are, check that a rule has metrics to read."""
    members = exchange.members
    members.wait_for(count)
    if len(members.clients) < len(task.federation.clients):
        return  # a client that joins later may share its metrics
    try:
        for stage in task.stages:
            check_sharing(stage, exchange.sharing)
    except RequestError as error:
        members.dismiss(f"the training has not started: {error}")
        raise


def check_start(start_with: int | None, clients: int) -> None:
    """Raise if the training could never start."""
    if start_with is not None and start_with > clients:
        raise RequestError(
            f"--start-with {start_with}: the experiment has {clients} clients. Give a number from 1 to "
            f"{clients}, or leave it out to wait for all."
        )


def report_traffic(arrays: Traffic, flower: tuple[int, int], observer: Observer, events: Events) -> None:
    """Report the bytes that this process has sent and received, at the end of the training."""
    observer.say(traffic_text(arrays, flower))
    events(
        "end",
        arrays={"down": arrays.down, "up": arrays.up, "evaluation": arrays.evaluation},
        with_framing={"down": flower[0], "up": flower[1]},
    )


def traffic_text(arrays: Traffic, flower: tuple[int, int]) -> str:
    """The bytes that this process has sent and received, as a sentence."""
    return (
        f"sent {arrays.down:,} bytes of arrays in orders, and {arrays.evaluation:,} for evaluations "
        f"({flower[0]:,} with Flower's framing); received {arrays.up:,} ({flower[1]:,}); HTTP and TLS are "
        "not counted"
    )


def federated(task: Task) -> Task:
    """The task with the settings of a federation: an upload that cannot be used is left out."""
    source: Literal["seed", "system"] = "system" if task.privacy.active else "seed"
    return replace(task, on_divergence="drop", noise_source=source)
