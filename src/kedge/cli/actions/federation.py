"""The server and the clients of a federation over the network."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from kedge.cli.actions.run import print_result
from kedge.cli.output import print_line, print_message
from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.core.errors import RequestError
from kedge.engines.flower.events import Events
from kedge.report.runs import read_run
from kedge.running.progress import Observer, Progress


def require_flower() -> None:
    """Raise if Flower is not installed."""
    if find_spec("flwr") is None:
        raise RequestError(
            "a federation over the network needs Flower, which is not installed: pip install 'kedge[flower]' "
            "(Python 3.11 to 3.13)."
        )


class SiteOptions(NamedTuple):
    """The options of kedge join about the site's data."""

    data: Path | None
    validation: Path | None
    labels: str
    share_metrics: bool

    def check(self) -> None:
        """Raise if an option has no effect."""
        if self.validation and not self.data:
            raise RequestError(
                f"--validation {self.validation} without --data: this client then trains on the experiment's "
                "own data, and evaluates on its local test (evaluation.local_test). Give --data FILE, too."
            )
        if self.share_metrics and self.data and not self.validation:
            raise RequestError(
                "--share-metrics has no effect without a validation set: add --validation FILE, an npz file "
                "with x and y."
            )


class JoinOptions(NamedTuple):
    """The options of kedge join."""

    address: str
    client: int | None
    files: SiteOptions
    memory: Path | None
    experiment: str
    credentials: Path | None
    insecure: bool
    patience: float
    explain: bool


def check_security(credentials: Path | None, insecure: bool) -> None:
    """Raise unless exactly one of --credentials and --insecure is given."""
    if insecure == (credentials is not None):
        raise RequestError(
            "give either --credentials DIR, a folder that kedge serve --init has made, or --insecure for a "
            "trial on 127.0.0.1."
        )


def make_credentials(folder: Path, hosts: str, clients: int) -> None:
    """Make keys and certificates, and print the sheet that assigns them to the sites."""
    from kedge.engines.flower.certificates import initialize

    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if not names:
        raise RequestError("--hosts: name the server as clients reach it, as in fl.example.org,10.0.0.5.")
    sheet = initialize(folder, names, clients)
    print_line(sheet.read_text(encoding="utf-8"))


class Patience(NamedTuple):
    """The answers that a round waits for, and the updates that it leaves out."""

    least: int
    deadline: float | None
    norm_limit: float
    skip: bool
    start_with: int | None

    def check(self) -> None:
        """Raise if a number is out of its range."""
        for option, number in (("min-clients", self.least), ("start-with", self.start_with)):
            if number is not None and number < 1:
                raise RequestError(f"--{option} {number}: need at least 1.")
        if self.deadline is not None and not self.deadline > 0:
            raise RequestError(f"--deadline {self.deadline}: need a number of seconds above 0.")
        if self.least > 1 and self.deadline is None:
            raise RequestError(
                "--min-clients has no effect without --deadline: a round then waits for all its clients. Add "
                "--deadline SECONDS."
            )
        if self.skip and self.deadline is None:
            raise RequestError("--skip has no effect without --deadline: add --deadline SECONDS.")
        if not self.norm_limit > 1:
            raise RequestError(f"--norm-limit {self.norm_limit}: need a number above 1.")


def server_of(
    address: str, credentials: Path | None, insecure: bool, patience: Patience, labels: str = ""
) -> Any:
    """The server of the options; raise if they exclude each other."""
    from kedge.engines.flower.certificates import read_server
    from kedge.engines.flower.superlink import Certificate
    from kedge.running.federation.labels import names_from_option
    from kedge.running.federation.serve import Server

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RequestError(f"--address {address}: need HOST:PORT, as in 127.0.0.1:8474.")
    check_security(credentials, insecure)
    patience.check()
    names = names_from_option(labels)
    if credentials is None:
        return Server(host.strip("[]"), int(port), None, None, *patience, labels=names)
    files = read_server(credentials)
    certificate = Certificate(files.certificate, files.key)
    return Server(host.strip("[]"), int(port), certificate, files.clients, *patience, labels=names)


def serve_document(
    document: dict[str, Any], folder: Path, server: Any, force: bool, quiet: bool, as_json: bool
) -> None:
    """Train an experiment in a new folder, and print its result."""
    from kedge.running.federation.serve import serve

    experiment = resolve(document)

    def work(observer: Observer, events: Events) -> Progress:
        return serve(experiment, folder, server, force, observer, events)

    show(work, folder, f"{experiment.name}: {experiment.label}", experiment.rounds, quiet, as_json)


def resume(folder: Path, server: Any, quiet: bool, as_json: bool) -> None:
    """Continue the training in a folder, and print its result."""
    from kedge.running.execute import read_experiment
    from kedge.running.federation.serve import resume_serving

    experiment = read_experiment(folder)

    def work(observer: Observer, events: Events) -> Progress:
        return resume_serving(folder, server, observer, events)

    show(work, folder, f"{experiment.name}: {experiment.label}", experiment.rounds, quiet, as_json)


def show(
    work: Callable[[Observer, Events], Progress],
    folder: Path,
    label: str,
    rounds: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show the progress of the training `work`, and print its result."""
    from kedge.running.federation.displays import display_for, observer_of

    with display_for(label, rounds, quiet, as_json) as display:
        try:
            work(*observer_of(display))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; the state after the last round is saved. Resume with: "
                f"kedge serve --resume {folder}"
            ) from None
    print_result([read_run(folder)], folder, None, quiet, as_json)


def join_server(options: JoinOptions, quiet: bool) -> None:
    """Take part in a training until it ends."""
    from kedge.engines.flower.certificates import read_client
    from kedge.engines.flower.supernode import Credentials
    from kedge.running.federation.join import join
    from kedge.running.federation.labels import names_from_option
    from kedge.running.federation.site import Site
    from kedge.running.federation.site_data import SiteFiles

    check_security(options.credentials, options.insecure)
    options.files.check()
    files = read_client(options.credentials) if options.credentials else None
    client = options.client if files is None else files.client
    if client is None:
        raise RequestError("--client: with --insecure, give the number of this client, from 0.")
    if options.client not in (None, client):
        raise RequestError(f"--client {options.client}: the credentials are those of client {client}.")
    memory = options.memory or Path("federation") / f"client-{client}"
    credentials = Credentials(files.keys, files.authority, memory / "node") if files else Credentials()
    experiment = resolve(read(options.experiment)) if options.experiment else None
    data, validation, labels, shares = options.files
    site_files = SiteFiles(data, validation, names_from_option(labels))
    site = Site(
        options.address, client, memory, site_files, shares, experiment, credentials,
        options.patience, options.explain,
    )  # fmt: skip
    say = (lambda message: None) if quiet else print_message
    end = join(site, say)
    if options.explain:
        print_line(end)
    else:
        say(end)
