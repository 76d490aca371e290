"""The server and the clients of a federation over the network."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from kedge.cli.output import print_json, print_line, print_message
from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.core.errors import RequestError
from kedge.report.runs import read_run
from kedge.report.tables.comparison import comparison
from kedge.running.progress import Observer, Progress
from kedge.running.progress_bar import Bar


def require_flower() -> None:
    """Raise if Flower is not installed."""
    if find_spec("flwr") is None:
        raise RequestError(
            "a federation over the network needs Flower, which is not installed: pip install 'kedge[flower]' "
            "(Python 3.11 to 3.13)."
        )


class JoinOptions(NamedTuple):
    """The options of kedge join."""

    address: str
    client: int
    data: Path | None
    memory: Path | None
    experiment: str
    insecure: bool
    patience: float


def server_of(address: str, insecure: bool, least: int | None, deadline: float | None) -> Any:
    """The server of the options; raise if they exclude each other."""
    from kedge.running.federation.serve import Server

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RequestError(f"--address {address}: need HOST:PORT, as in 127.0.0.1:8474.")
    if not insecure:
        raise RequestError("TLS comes with the next version: add --insecure and listen on 127.0.0.1.")
    return Server(host.strip("[]"), int(port), None, None, least, deadline)


def serve_document(
    document: dict[str, Any], folder: Path, server: Any, force: bool, quiet: bool, as_json: bool
) -> None:
    """Train an experiment in a new folder, and print its result."""
    from kedge.running.federation.serve import serve

    experiment = resolve(document)

    def work(observer: Observer) -> Progress:
        return serve(experiment, folder, server, observer, force)

    show(work, folder, experiment.label, experiment.rounds, quiet, as_json)


def resume(folder: Path, server: Any, quiet: bool, as_json: bool) -> None:
    """Continue the training in a folder, and print its result."""
    from kedge.running.execute import read_experiment
    from kedge.running.federation.serve import resume_serving

    experiment = read_experiment(folder)

    def work(observer: Observer) -> Progress:
        return resume_serving(folder, server, observer)

    show(work, folder, experiment.label, experiment.rounds, quiet, as_json)


def show(  # noqa: PLR0913
    work: Callable[[Observer], Progress], folder: Path, label: str, rounds: int, quiet: bool, as_json: bool
) -> None:
    """Show the progress of the training `work`, and print its result."""
    with Bar(label, rounds, False if quiet or as_json else None) as bar:
        try:
            work(Observer(bar.line, bar.say))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; the state after the last round is saved. Continue: kedge serve --resume {folder}"
            ) from None
    if as_json:
        print_json({"folder": str(folder), "runs": comparison([read_run(folder)], None)})
    elif not quiet:
        print_line(f"{folder}")


def join_server(options: JoinOptions, quiet: bool) -> None:
    """Take part in a training until it ends."""
    from kedge.engines.flower.supernode import Credentials
    from kedge.running.federation.join import Site, join

    if not options.insecure:
        raise RequestError("TLS comes with the next version: add --insecure.")
    experiment = resolve(read(options.experiment)) if options.experiment else None
    memory = options.memory or Path("federation") / f"client-{options.client}"
    site = Site(
        options.address, options.client, memory, options.data, experiment, Credentials(None, None),
        options.patience,
    )  # fmt: skip
    say = (lambda message: None) if quiet else print_message
    say(join(site, say))
