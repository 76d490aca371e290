"""kedge serve: the server of a federation over the network."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Experiment, Force, Json, Out, PrecisionName, Quiet, ResumeRun, Seed, Sets
from kedge.core.errors import RequestError

Address = Annotated[str, typer.Option(help="Where to listen, as HOST:PORT.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and without keys; only on 127.0.0.1, for trials.")
]
Credentials = Annotated[
    Path | None,
    typer.Option(help="The folder with your keys and certificates; kedge serve --init makes it."),
]
Init = Annotated[
    Path | None,
    typer.Option("--init", help="Make keys and certificates in this new folder, and a sheet; train nothing."),
]
Hosts = Annotated[
    str, typer.Option(help="With --init: the server's names and addresses, separated by commas.")
]
Clients = Annotated[int, typer.Option(help="With --init: the number of clients.")]
LeastAnswers = Annotated[
    int, typer.Option("--min-clients", help="The number of answers that a round needs at its deadline.")
]
Deadline = Annotated[
    float | None,
    typer.Option(help="Seconds after which a round ends without the clients that have not answered."),
]
Skip = Annotated[
    bool,
    typer.Option(
        "--skip", help="End a round with too few answers at its deadline without an update; do not wait."
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        "--labels",
        help="The meaning of the labels 0, 1, ..., separated by commas; compared with that of the clients.",
    ),
]
StartWith = Annotated[
    int | None,
    typer.Option(help="Start when this many clients have connected; the others join later. Default: all."),
]
NormLimit = Annotated[
    float, typer.Option(help="Leave out updates whose norm is more than this multiple of the median's.")
]


@report_errors
def command(
    experiment: Experiment = "",
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    precision: PrecisionName = "",
    address: Address = "127.0.0.1:8474",
    credentials: Credentials = None,
    insecure: Insecure = False,
    init: Init = None,
    hosts: Hosts = "localhost,127.0.0.1",
    clients: Clients = 0,
    least: LeastAnswers = 1,
    deadline: Deadline = None,
    skip: Skip = False,
    start_with: StartWith = None,
    norm_limit: NormLimit = 100.0,
    labels: Labels = "",
    out: Out = None,
    resume_from: ResumeRun = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train an experiment with clients on other machines, which join with kedge join.

    Needs the extra: pip install 'kedge[flower]'. The server stores its state after every round: if it is
    stopped or killed, --resume continues exactly, and the clients connect again.
    """
    from kedge.cli.actions import federation as action
    from kedge.cli.actions.training import read_document

    action.require_flower()
    if init:
        action.make_credentials(init, hosts, clients)
        return
    server = action.server_of(
        address, credentials, insecure, action.Patience(least, deadline, norm_limit, skip, start_with), labels
    )
    if resume_from:
        if experiment or sets or out or precision or seed is not None:
            raise RequestError(
                "--resume continues the training with its own settings: "
                "leave out the experiment, --set, --seed, --precision and --out."
            )
        action.resume(resume_from, server, quiet, as_json)
        return
    if not experiment:
        raise RequestError("name an experiment, as in kedge serve my.toml.")
    document = read_document(experiment, sets, seed, engine_precision=precision)
    folder = out or Path("runs") / str(document["name"])
    action.serve_document(document, folder, server, force, quiet, as_json)
