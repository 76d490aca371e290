"""The command line: one file a command."""

from typing import Annotated

import typer

from kedge.cli.allocator import keep_freed_memory
from kedge.cli.audit import command as audit
from kedge.cli.bench import command as bench
from kedge.cli.compare import command as compare
from kedge.cli.cost import command as cost
from kedge.cli.listing import command as listing
from kedge.cli.partition import command as partition
from kedge.cli.plot import command as plot
from kedge.cli.reproduce import command as reproduce
from kedge.cli.run import command as run
from kedge.cli.signals import TERMINATOR
from kedge.cli.sweep import command as sweep
from kedge.cli.theory import command as theory
from kedge.version import __version__

app = typer.Typer(
    name="kedge",
    help="Federated learning when clients' data differ: run, compare, audit and time methods against drift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def tell_version(wanted: bool) -> None:
    """Print it and end."""
    if wanted:
        typer.echo(f"kedge {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=tell_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """What comes before a command's name."""


app.command("run")(run)
app.command("sweep")(sweep)
app.command("reproduce")(reproduce)
app.command("compare")(compare)
app.command("plot")(plot)
app.command("partition")(partition)
app.command("cost")(cost)
app.command("list")(listing)
app.command("theory")(theory)
app.command("audit")(audit)
app.command("bench")(bench)


def main() -> None:
    """The program `kedge`."""
    TERMINATOR.start()
    keep_freed_memory()
    app()
