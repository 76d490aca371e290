"""kedge compare: a table of runs."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.options import Debug, Json, check_target, console, guarded, show
from kedge.report.plots import accuracy_plot
from kedge.report.runs import find_runs
from kedge.report.tables import comparison, rendered


@guarded
def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    target: Annotated[float | None, typer.Option(help="Rounds to this accuracy, as a share: 0.9.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over rounds into this PNG.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs: mean ± standard deviation over seeds, last and best round, rounds to a target."""
    check_target(target)
    found = find_runs(runs)
    rows = comparison(found, target)
    if plot:
        accuracy_plot(found, plot)
    if as_json:
        show({"runs": rows, "plot": str(plot) if plot else None})
    else:
        console().print(rendered(rows, target))
