"""The program `kedge`: commands/ has the options and help texts of its commands, actions/ their work.

Modules outside actions/ load no PyTorch, so that help, the version and shell completion appear at once. A
command imports its action inside its function.
"""

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from kedge.cli.allocator import keep_freed_memory
from kedge.cli.commands import (
    audit,
    bench,
    compare,
    cost,
    join,
    listing,
    partition,
    plot,
    reproduce,
    run,
    serve,
    sweep,
    theory,
)
from kedge.cli.signals import TERMINATOR
from kedge.version import __version__

COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.command,
    "sweep": sweep.command,
    "reproduce": reproduce.command,
    "compare": compare.command,
    "plot": plot.command,
    "partition": partition.command,
    "cost": cost.command,
    "list": listing.command,
    "theory": theory.command,
    "audit": audit.command,
    "bench": bench.command,
    "serve": serve.command,
    "join": join.command,
}

app = typer.Typer(
    name="kedge",
    help="Federated learning when clients' data differ: run, compare, audit and time methods against drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def help_text(command: Callable[..., None]) -> str:
    """The docstring of a command, one line for each paragraph; the terminal wraps them."""
    return "\n\n".join(part.replace("\n", " ") for part in (inspect.getdoc(command) or "").split("\n\n"))


def print_version(requested: bool) -> None:
    """Print the version and exit, if the option --version is given."""
    if requested:
        typer.echo(f"kedge {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options before the name of a command."""


for name, command in COMMANDS.items():
    app.command(name, help=help_text(command))(command)


def main() -> None:
    """Run the program `kedge`."""
    TERMINATOR.start()
    keep_freed_memory()
    app()
