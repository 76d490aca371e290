"""The comparison of runs as rows of plain values, and as a table for a terminal."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from kedge.measure.cells import cell_summary, matrix_order
from kedge.report.costs import cost_to_target, efficiency, mean_seconds, seconds
from kedge.report.method_texts import cells_of
from kedge.report.runs import Run, metric_of, seed_groups
from kedge.report.tables.layout import number_table

NO_CELL: dict[str, Any] = {"last": None, "last_std": None, "best": None, "best_std": None, "partial": False}


def comparison(
    runs: Sequence[Run], target: float | None = None, metric: str | None = None
) -> list[dict[str, Any]]:
    """One row per group of runs: accuracy at the last and the best round, rounds to a target, cost."""
    labels = [label_of(group) for group in seed_groups(runs)]
    metric = metric_of(runs, metric)
    return [row_of(group, labels, target, metric) for group in seed_groups(runs)]


def row_of(group: list[Run], labels: list[str], target: float | None, metric: str | None) -> dict[str, Any]:
    """The row of runs that differ only in the seed: means, values per seed, and all cells."""
    measured = [run for run in group if run.curve(metric)]
    curves = [run.curve(metric) for run in measured]
    cells = {name: cell_of(group, name) for name in matrix_order(n for run in group for n in run.accuracies)}
    cell = cells.get(metric or "", NO_CELL)
    label = label_of(group)
    if labels.count(label) > 1:  # several groups have the same method: name them by folder
        folder = group[0].folder
        label = (folder.parent if len(group) > 1 and folder.name.startswith("seed") else folder).name
    row: dict[str, Any] = {
        "method": label,
        "label": label_of(group),
        "runs": len(group),
        "rounds": min(len(run.history) for run in group),
        "complete": all(run.complete for run in group),
        "diverged": any(run.diverged for run in group),
        "metric": metric,
        "accuracy": cell["last"],
        "accuracy_std": cell["last_std"],
        "best": cell["best"],
        "best_std": cell["best_std"],
        "partial": cell["partial"],
        "seconds": mean_seconds([seconds(run.history) for run in group]),
        "folders": [str(run.folder) for run in group],
        "accuracies": [curve[-1][1] for curve in curves],
        "cells": cells,
        "reports": list(cells_of(label_of(group))),
        "epsilon": epsilon_of(group),
        **efficiency([run.history for run in group], cell["last"]),
    }
    if target is not None:
        reached = [next((r for r, value in curve if value >= target), None) for curve in curves]
        row |= cost_to_target([run.history for run in measured], reached)
    return row


def label_of(group: Sequence[Run]) -> str:
    """The methods of the run with the most stages: a rule may end a stage in the run of one seed only."""
    return max((run.label for run in group), key=lambda label: label.count("->"))


def epsilon_of(group: Sequence[Run]) -> float | None:
    """The largest ε of private runs after their last rounds; None if a run has none."""
    values = [run.history[-1].get("privacy.epsilon") if run.history else None for run in group]
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def cell_of(group: Sequence[Run], name: str) -> dict[str, Any]:
    """Last and best value over the seeds; `partial` if a run lacks the cell in its last evaluation."""
    by_run = [(cell_summary(run.history, name), run) for run in group if name in run.accuracies]
    last, best = [summary.last for summary, _ in by_run], [summary.best for summary, _ in by_run]
    late = all(summary.last_round >= run.last_evaluation for summary, run in by_run)
    return {
        "last": mean(last),
        "last_std": stdev(last) if len(last) > 1 else None,
        "best": mean(best),
        "best_std": stdev(best) if len(best) > 1 else None,
        "runs": len(by_run),
        "partial": len(by_run) < len(group) or not late,
    }


def percent(value: float | None, spread: float | None = None, partial: bool = False) -> str:
    """A fraction in percent, with its standard deviation; in parentheses if it is `partial`."""
    if value is None:
        return "–"
    text = f"{100 * value:.2f}" + (f" ± {100 * spread:.2f}" if spread is not None else "")
    return f"({text})" if partial else text


def comparison_table(
    rows: Sequence[dict[str, Any]], target: float | None = None, first: str = "method"
) -> Table:
    """The comparison as a table; `first` is the heading of the first column."""
    table = number_table(first, "runs", "rounds", "accuracy %", "best %")
    if target is not None:
        table.add_column(f"rounds to {100 * target:g} %", justify="right")
    private = any(row["epsilon"] is not None for row in rows)
    if private:
        table.add_column("ε", justify="right")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    top = max((row["accuracy"] for row in rows if row["accuracy"] is not None), default=None)
    for row in rows:
        cells = [row["method"], str(row["runs"]), str(row["rounds"])]
        cells += [percent(row["accuracy"], row["accuracy_std"], row["partial"])]
        cells += [percent(row["best"], row["best_std"])]
        if target is not None:
            reached = row["rounds_to_target"]
            cells.append("not reached" if reached is None else f"{reached:g}")
        if private:
            cells.append("–" if row["epsilon"] is None else f"{row['epsilon']:.3g}")
        note = "diverged" if row["diverged"] else "" if row["complete"] else "unfinished"
        style = (
            "bold green" if row["accuracy"] is not None and row["accuracy"] == top and len(rows) > 1 else None
        )
        table.add_row(*cells, "–" if row["seconds"] is None else f"{row['seconds']:.1f}", note, style=style)
    return table
