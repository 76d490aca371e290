"""kedge compare: a table of runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.cli.options import Debug, Json, check_target, console, guarded, notes, show
from kedge.core.errors import RequestError
from kedge.report import matrix
from kedge.report.matrix import metric_notes
from kedge.report.plots import accuracy_plot
from kedge.report.runs import find_runs
from kedge.report.tables import comparison, rendered


@guarded
def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    target: Annotated[float | None, typer.Option(help="Rounds to this accuracy, as a share: 0.9.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Which accuracy table, target and plot are of: average.global.accuracy; by default "
            "the distributed model's on the common test set, else on local tests."
        ),
    ] = None,
    cells: Annotated[
        bool,
        typer.Option("--cells", help="Show every accuracy there is: models × data, before and after tuning."),
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="With --cells: the best rounds' values as well as the last's.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over rounds into this PNG.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs: mean ± standard deviation over seeds, last and best round, rounds to a target."""
    check_target(target)
    if cells and (metric or target is not None):
        raise RequestError("--cells shows every metric: leave --metric and --target out.")
    if best and not cells:
        raise RequestError("--best goes with --cells; the other table has best values already.")
    found = find_runs(runs)
    rows = comparison(found, target, metric)
    if plot:
        accuracy_plot(found, plot, metric=metric)
    if as_json:
        show({"metric": rows[0]["metric"], "runs": rows, "plot": str(plot) if plot else None})
    elif cells:
        tell_matrix(rows, best)
    else:
        out = console()
        out.print(rendered(rows, target))
        notes(metric_notes(rows))


def tell_matrix(rows: list[dict[str, Any]], best: bool) -> None:
    """The whole matrix, values of the last round and if asked for of the best."""
    out = console()
    out.print("accuracy %, last round", style="dim")
    for line in matrix.rendered(rows, out.width):
        out.print(line, soft_wrap=True)
    if best:
        out.print("\naccuracy %, best round of each cell", style="dim")
        for line in matrix.rendered(rows, out.width, "best"):
            out.print(line, soft_wrap=True)
    notes(matrix.cell_notes(rows))
