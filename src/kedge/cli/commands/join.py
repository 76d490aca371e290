"""kedge join: a client of a federation over the network."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.commands.serve import Credentials, Insecure
from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Quiet

ServerAddress = Annotated[str, typer.Argument(help="The server's address, as HOST:PORT.")]
DataFile = Annotated[
    Path | None,
    typer.Option(
        "--data", help="An npz file with the arrays x and y. Default: client N of the experiment's own data."
    ),
]
ValidationFile = Annotated[
    Path | None,
    typer.Option(
        "--validation",
        help="An npz file with x and y, on which you evaluate the models; it stays here. Default: without "
        "--data the experiment's local test of client N, else none.",
    ),
]
ShareMetrics = Annotated[
    bool,
    typer.Option(
        "--share-metrics",
        help="Send the metrics on your validation set to the server. Without it they are only written to "
        "metrics.jsonl in the folder of the memory.",
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        "--labels",
        help="The meaning of your labels 0, 1, ..., separated by commas. Default: label_names in --data.",
    ),
]
ClientNumber = Annotated[
    int | None,
    typer.Option("--client", help="The number of this client, from 0. Default: that of the credentials."),
]
Memory = Annotated[
    Path | None, typer.Option(help="The folder of this client's memory. Default: federation/client-N.")
]
OwnExperiment = Annotated[
    str,
    typer.Option("--experiment", help="Your copy of the experiment; needed if it names code of its own."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print everything that this client would send, and take no part.")
]
Patience = Annotated[float, typer.Option(help="Seconds without a server, after which the client ends.")]


@report_errors
def command(
    address: ServerAddress,
    data: DataFile = None,
    validation: ValidationFile = None,
    share_metrics: ShareMetrics = False,
    labels: Labels = "",
    client: ClientNumber = None,
    credentials: Credentials = None,
    memory: Memory = None,
    experiment: OwnExperiment = "",
    insecure: Insecure = False,
    patience: Patience = 600.0,
    explain: Explain = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Take part in the training of a server (kedge serve) with the data of this machine.

    Needs the extra: pip install 'kedge[flower]'. The data stay here; the client connects to the server, never
    the other way round. The method's memory of this client is stored in its folder.
    """
    from kedge.cli.actions import federation as action

    action.require_flower()
    files = action.SiteOptions(data, validation, labels, share_metrics)
    action.join_server(
        action.JoinOptions(
            address, client, files, memory, experiment, credentials, insecure, patience, explain
        ),
        quiet,
    )
