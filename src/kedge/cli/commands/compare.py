"""kedge compare: a table of runs."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Json, RunFolders, Target, check_png, check_target
from kedge.core.errors import RequestError


@report_errors
def command(
    runs: RunFolders,
    target: Target = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="The accuracy of table, target and plot, such as average.global.accuracy. Default: the "
            "distributed model's on the common test set, or on local tests if there is none."
        ),
    ] = None,
    cells: Annotated[
        bool,
        typer.Option("--cells", help="Show every accuracy: models × data, before and after fine-tuning."),
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="With --cells: values of the best round as well as the last.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over rounds into this PNG.")] = None,
    cost_plot: Annotated[
        Path | None, typer.Option(help="Draw the costs of the rounds, phase by phase, into this PNG.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare runs: accuracy of the last and the best round over seeds, costs, rounds to a target."""
    from kedge.cli.actions import compare as action
    from kedge.report.plots.accuracy import accuracy_plot
    from kedge.report.runs import find_runs
    from kedge.report.tables.comparison import comparison

    check_target(target)
    if cost_plot:
        check_png("--cost-plot", cost_plot)
    if cells and (metric or target is not None):
        raise RequestError("--cells shows every metric: leave --metric and --target out.")
    if best and not cells:
        raise RequestError("--best needs --cells; the other table already has the best values.")
    found = find_runs(runs)
    rows = comparison(found, target, metric)
    if plot:
        accuracy_plot(found, plot, metric=metric)
    if cost_plot:
        action.plot_costs(found, cost_plot)
    if as_json:
        action.print_comparison_json(rows, plot, cost_plot)
    elif cells:
        action.print_matrix(rows, best)
    else:
        action.print_comparison(rows, target)
