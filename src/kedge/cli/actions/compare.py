"""Tables of runs side by side: accuracies, costs, and the matrix of models × data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kedge.cli.output import console, print_json, print_notes
from kedge.core.errors import RequestError
from kedge.report.plots.cost import cost_png
from kedge.report.runs import Run
from kedge.report.tables.comparison import comparison_table
from kedge.report.tables.cost import cost_notes, run_table, target_table
from kedge.report.tables.matrix import Which, cell_notes, matrix_tables, metric_notes
from kedge.running.folders.folder import write


def plot_costs(runs: Sequence[Run], path: Path) -> None:
    """Draw the costs of `runs` into a PNG."""
    plot = cost_png(runs)
    if plot is None:
        raise RequestError("--cost-plot: none of these runs has costs in its history.")
    write(path, plot)


def print_comparison_json(rows: list[dict[str, Any]], plot: Path | None, cost_plot: Path | None) -> None:
    """Print the comparison and the files written as JSON."""
    files = {"plot": str(plot) if plot else None, "cost_plot": str(cost_plot) if cost_plot else None}
    print_json({"metric": rows[0]["metric"], "runs": rows, **files})


def print_comparison(rows: list[dict[str, Any]], target: float | None) -> None:
    """Print accuracies and costs."""
    console().print(comparison_table(rows, target))
    print_notes(metric_notes(rows))
    print_costs(rows, target)


def print_costs(rows: list[dict[str, Any]], target: float | None) -> None:
    """Print the costs of the runs, and the costs to the target."""
    out = console()
    if any(row["cost"] for row in rows):
        out.print()
        out.print(run_table(rows))
    if target is not None:
        out.print()
        out.print(target_table(rows, target))
    print_notes(cost_notes(rows))


def print_matrix(rows: list[dict[str, Any]], best: bool) -> None:
    """Print every accuracy of the last round, and with `best` of the best round."""
    out = console()
    tables: list[tuple[str, Which]] = [("accuracy %, last round", "last")]
    if best:
        tables.append(("accuracy %, best round of each cell", "best"))
    for number, (title, which) in enumerate(tables):
        out.print("\n" * (number > 0) + title, style="dim")
        for block, table in enumerate(matrix_tables(rows, out.width, which)):
            out.print(*[""] * (block > 0), table)
    print_notes(cell_notes(rows))
