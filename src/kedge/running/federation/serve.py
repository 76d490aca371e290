"""The server of a federation: the runner's loop, with an engine that sends orders over the network."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.data.npz_files import stored_label_names
from kedge.engines.flower.events import SILENT, Events
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
from kedge.running.federation.agreement import facts_to_compare
from kedge.running.federation.introduction import check_answer, introduction, read_labels, sizes_only
from kedge.running.federation.labels import LabelNames, Names, check_count
from kedge.running.federation.uploads import upload_templates
from kedge.running.folders.folder import locked, write
from kedge.running.progress import Observer, Progress
from kedge.running.runner import run

SIZES = "clients.json"


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
    if experiment.privacy.active:
        raise RequestError(
            "[privacy]: kedge serve does not support it. A simulation draws its noise from the seed, which "
            "every client knows, so that any of them could subtract it. Leave the table out, or simulate "
            "with kedge run."
        )
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
    names = names_of_labels(server, experiment, task.federation.classes)
    labels = LabelNames(names, observer.say)
    settings = Settings(server.least, server.deadline, server.skip)
    with (
        computing_in(task.precision),
        preserve_thread_count(),
        SuperLink(server.host, server.port, server.certificate, server.keys is not None) as link,
    ):
        torch.set_num_threads(experiment.engine.threads or torch.get_num_threads())
        nodes = {link.admit(key): client for key, client in (server.keys or {}).items()}
        sizes = read_sizes(folder)

        def admit(node: int, answer: Content) -> int:
            client = check_answer(answer, compared, clients)
            labels.check(client, read_labels(answer))
            check_claims(client, answer.integer("samples"), nodes.get(node), sizes)
            return client

        members = Members(link, introduction(experiment, task, names), admit, settings, observer.say, events)
        events("listening", address=link.address, clients=clients, rounds=task.rounds)
        observer.say(f"listening on {link.address} for {clients} clients")
        if sizes is None:
            members.wait_for(range(clients))
            sizes = [members.members[client].samples for client in range(clients)]
            write(folder / SIZES, json.dumps(sizes).encode())
        task = replace(federated(task), federation=sizes_only(task.federation, sizes))
        population = Population(sizes, upload_templates(task), server.norm_limit)
        engine = ServerEngine(task.model, task.stages, population, members, observer.say, events)
        engine_settings = {
            "name": FEDERATION,
            "compiled": False,
            "chunk": 0,
            "threads": torch.get_num_threads(),
        }
        write_environment(folder, task, engine_settings)
        progress = run(task, engine, folder, 1, engine_settings, observer)
        members.dismiss("the training has ended")
        report_traffic(engine.traffic, link.traffic(), observer, events)
        return progress


def check_rules(task: Task) -> None:
    """Raise if a rule reads a metric of a model that the clients do not receive."""
    for stage in task.stages:
        metric = str(getattr(stage.until, "metric", ""))
        if ".local." in metric and not metric.startswith(("distributed.", "personal.")):
            raise RequestError(
                f"plateau(metric={metric!r}): in a federation clients evaluate the distributed model and "
                "their own, no others. Use distributed.local or personal.local, or simulate with kedge run."
            )


def names_of_labels(server: Server, experiment: Experiment, classes: int) -> Names:
    """The names of the labels: those of --labels, else those in the experiment's npz file."""
    if server.labels:
        check_count(server.labels, classes, "--labels")
        return server.labels
    return stored_label_names(experiment.data["name"], experiment.data.get("path"))


def check_claims(client: int, samples: int, owner: int | None, sizes: list[int] | None) -> None:
    """Raise MessageError if a client is not the owner of its key, or has other samples than at the start."""
    if owner is not None and owner != client:
        raise MessageError(f"client {client} uses the key of client {owner}")
    if sizes is not None and samples != sizes[client]:
        raise MessageError(
            f"client {client} has {samples} samples; it had {sizes[client]} when the training started"
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
    return replace(task, on_divergence="drop")


def read_sizes(folder: Path) -> list[int] | None:
    """The clients' numbers of samples, if the run has started."""
    file = folder / SIZES
    return [int(n) for n in json.loads(file.read_bytes())] if file.is_file() else None
