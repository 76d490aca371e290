"""Accuracy over rounds as a PNG, mean and range over seeds. Needs the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path

from kedge.core.errors import RequestError
from kedge.report.runs import Run, grouped, metric_of

# Distinguishable also for the color-blind (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def accuracy_plot(runs: Sequence[Run], path: Path, title: str = "", metric: str | None = None) -> None:
    """Draw an accuracy of every group of runs over the rounds; by default the first there is."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError("a plot needs matplotlib: pip install 'kedge[plot]'.") from error
    metric = metric_of(runs, metric)
    figure = Figure(figsize=(8, 4.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, group in enumerate(grouped(runs)):
        curves = [dict(run.curve(metric)) for run in group if run.curve(metric)]
        if not curves:
            continue
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = [[100 * curve[r] for curve in curves] for r in rounds]
        color = COLORS[number % len(COLORS)]
        middle = [sum(at) / len(at) for at in values]
        dashed = "--" if "+" in group[0].label else "-"
        label = f"{group[0].label}  {middle[-1]:.1f} %"
        dot = "o" if len(rounds) == 1 else None  # a line of one point is none
        axes.plot(rounds, middle, dashed, color=color, label=label, linewidth=1.8, marker=dot)
        if len(curves) > 1:
            axes.fill_between(
                rounds, [min(at) for at in values], [max(at) for at in values], color=color, alpha=0.15
            )
    axes.set_xlabel("round")
    axes.set_ylabel(f"{metric or 'accuracy'}, %")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:  # runs that failed in their first round have none
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
