"""Plot accuracy over rounds into a PNG, with mean and range over seeds. Needs the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path

from kedge.report.plots.colors import METHODS
from kedge.report.plots.png import new_figure, require_matplotlib
from kedge.report.runs import Run, metric_of, seed_groups


def accuracy_plot(runs: Sequence[Run], path: Path, title: str = "", metric: str | None = None) -> None:
    """Plot the accuracy `metric` of each group of runs over the rounds; `metric_of` gives the default."""
    require_matplotlib("The tables need no matplotlib.")
    metric = metric_of(runs, metric)
    figure = new_figure(8, 4.8)
    axes = figure.add_subplot()
    for number, group in enumerate(seed_groups(runs)):
        curves = [dict(run.curve(metric)) for run in group if run.curve(metric)]
        if not curves:
            continue
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = [[100 * curve[r] for curve in curves] for r in rounds]
        color = METHODS[number % len(METHODS)]
        means = [sum(column) / len(column) for column in values]
        dashed = "--" if "+" in group[0].label else "-"
        label = f"{group[0].label}  {means[-1]:.1f} %"
        dot = "o" if len(rounds) == 1 else None  # a line through one point is invisible
        axes.plot(rounds, means, dashed, color=color, label=label, linewidth=1.8, marker=dot)
        if len(curves) > 1:
            axes.fill_between(
                rounds,
                [min(column) for column in values],
                [max(column) for column in values],
                color=color,
                alpha=0.15,
            )
    axes.set_xlabel("round")
    axes.set_ylabel(f"{metric or 'accuracy'}, %")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:  # runs that failed in their first round have no line
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
