"""kedge compare: a table of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.cli.options import Debug, Json, check_png, check_target, console, guarded, notes, show
from kedge.core.errors import RequestError
from kedge.report.plots.accuracy import accuracy_plot
from kedge.report.plots.cost import cost_png
from kedge.report.runs import Run, find_runs
from kedge.report.tables.comparison import comparison, comparison_table
from kedge.report.tables.cost import cost_notes, run_table, target_table
from kedge.report.tables.matrix import Which, cell_notes, matrix_tables, metric_notes
from kedge.running.folders.folder import write


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
    cost_plot: Annotated[
        Path | None, typer.Option(help="Draw what rounds cost, phase by phase, into this PNG.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs: accuracy over seeds, last and best round, what they cost, and what a target took."""
    check_target(target)
    if cost_plot:
        check_png("--cost-plot", cost_plot)
    if cells and (metric or target is not None):
        raise RequestError("--cells shows every metric: leave --metric and --target out.")
    if best and not cells:
        raise RequestError("--best goes with --cells; the other table has best values already.")
    found = find_runs(runs)
    rows = comparison(found, target, metric)
    if plot:
        accuracy_plot(found, plot, metric=metric)
    if cost_plot:
        write(cost_plot, cost_picture(found))
    if as_json:
        written = {"plot": str(plot) if plot else None, "cost_plot": str(cost_plot) if cost_plot else None}
        show({"metric": rows[0]["metric"], "runs": rows, **written})
    elif cells:
        tell_matrix(rows, best)
    else:
        out = console()
        out.print(comparison_table(rows, target))
        notes(metric_notes(rows))
        tell_costs(rows, target)


def cost_picture(runs: Sequence[Run]) -> bytes:
    """What the rounds of these runs cost."""
    picture = cost_png(runs)
    if picture is None:
        raise RequestError("--cost-plot: no run here has costs in its history.")
    return picture


def tell_costs(rows: list[dict[str, Any]], target: float | None) -> None:
    """What the runs cost, and what the target took."""
    out = console()
    if any(row["cost"] for row in rows):
        out.print()
        out.print(run_table(rows))
    if target is not None:
        out.print()
        out.print(target_table(rows, target))
    notes(cost_notes(rows))


def tell_matrix(rows: list[dict[str, Any]], best: bool) -> None:
    """The whole matrix: values of the last round and, with `best`, of the best rounds."""
    out = console()
    tables: list[tuple[str, Which]] = [("accuracy %, last round", "last")]
    if best:
        tables.append(("accuracy %, best round of each cell", "best"))
    for number, (title, which) in enumerate(tables):
        out.print("\n" * (number > 0) + title, style="dim")
        for block, table in enumerate(matrix_tables(rows, out.width, which)):
            out.print(*[""] * (block > 0), table)
    notes(cell_notes(rows))
