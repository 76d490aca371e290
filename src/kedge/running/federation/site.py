"""A site: its own settings, and the objects of the training that it takes part in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from kedge.config.assemble import assemble
from kedge.config.experiment import Experiment
from kedge.config.federations import federation_of
from kedge.config.task import Task
from kedge.core.errors import DataError, RequestError
from kedge.data.federation import Federation
from kedge.engines.flower.client_engine import ClientEngine
from kedge.engines.flower.client_memory import ClientMemory
from kedge.engines.flower.messages import Content
from kedge.engines.flower.supernode import Credentials
from kedge.running.federation.introduction import Membership, read_experiment, read_form, read_labels
from kedge.running.federation.labels import Names, check_site_labels, label_text
from kedge.running.federation.site_data import DataForm, SiteFiles, federation_of_files, label_names
from kedge.running.federation.validation import LOG, Validation

RUN_DIGITS = 12  # of the run's digest in the name of a memory's folder


@dataclass(frozen=True)
class Site:
    """A client's own settings; none of them is chosen by the server."""

    address: str
    client: int
    memory: Path  # the folder of the client's memory
    files: SiteFiles = SiteFiles()
    shares: bool = False  # whether the metrics on the validation set are sent to the server
    experiment: Experiment | None = None  # the site's own copy; the server's must be equal
    credentials: Credentials = Credentials()
    patience: float = 600.0  # seconds without a server, after which the client ends
    explain: bool = False  # report the uploads and end, before the server counts this client


class SiteRun(NamedTuple):
    """The objects of one training on a client."""

    digest: str  # of the run's identity
    experiment: Experiment
    task: Task
    engine: ClientEngine
    validation: Validation
    member: Membership


def run_of(site: Site, content: Content, before: SiteRun | None) -> SiteRun:
    """The objects of the training in an introduction; those from `before` if it is the same training."""
    experiment = read_experiment(content, site.experiment)
    check_private(site, experiment)
    labels = label_names(site.files, content.integer("classes"))
    check_site_labels(read_labels(content), labels, site.files.data)
    digest = content.text("run")
    if before is not None and before.digest == digest:
        return before
    data = data_of(site, experiment, read_form(content))
    torch.set_num_threads(experiment.engine.threads or torch.get_num_threads())
    task = assemble(experiment, federation=data)
    folder = site.memory / digest[:RUN_DIGITS]  # one for each run
    memory = ClientMemory(folder, digest, site.client)
    private = task.privacy.active
    engine = ClientEngine(task.model, task.stages, task.federation, task.seed, memory, private)
    (samples,), (tests,) = data.clients, data.local_tests
    if not len(samples):
        raise DataError(f"client {site.client} has no samples.")
    evaluates = len(tests) > 0 and not private
    sent = None if private else len(samples)
    member = Membership(site.client, sent, evaluates, site.shares and evaluates, labels)
    return SiteRun(digest, experiment, task, engine, Validation(task, folder / LOG, site.shares), member)


def check_private(site: Site, experiment: Experiment) -> None:
    """Raise if a site has options for metrics, and the experiment is private."""
    options = {"--validation": site.files.validation, "--share-metrics": site.shares}
    given = [name for name, value in options.items() if value]
    if given and experiment.privacy.active:
        raise RequestError(
            f"{' and '.join(given)}: the experiment is private ([privacy]), and sites do not evaluate in a "
            "private run: metrics have no noise. Leave these options out."
        )


def data_of(site: Site, experiment: Experiment, form: DataForm) -> Federation:
    """The federation of this client only."""
    if site.files.data is None:
        return simulated_client(federation_of(experiment), site.client)
    return federation_of_files(site.files, form)


def simulated_client(data: Federation, client: int) -> Federation:
    """The data of one client of a simulated federation."""
    if client >= len(data.clients):
        raise RequestError(f"--client {client}: the experiment has the clients 0 to {len(data.clients) - 1}.")
    return replace(data, clients=(data.clients[client],), local_tests=(data.local_tests[client],))


def run_lines(run: SiteRun, site: Site, server_labels: Names) -> Iterator[str]:
    """Lines for the site: the training, and this client's part in it."""
    task, member, validation = run.task, run.member, run.validation
    methods = " -> ".join(stage.algorithm.name for stage in task.stages)
    yield f"the experiment: {run.experiment.name}, {methods}, {task.rounds} rounds"
    yield f"you are client {member.client} with {len(task.federation.clients[0])} training samples"
    if task.privacy.active:
        yield "the experiment is private: neither metrics nor your number of samples are sent"
    elif member.evaluates:
        sent = "and sent to the server" if site.shares else "and not sent"
        yield f"{validation.samples} validation samples: metrics are written to {validation.file}, {sent}"
    else:
        yield "no validation samples: no metrics of your data"
    yield label_text(member.labels, server_labels)
