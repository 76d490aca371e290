"""Plots of metrics over the rounds, from histories: mean and range over seeds of each method. Needs `plot`.

A panel lists metrics in order of preference and shows the first metric that a run has. Lines connect the
rounds that have a value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kedge.report.plots.colors import METHODS
from kedge.report.plots.png import new_figure, png, require_matplotlib
from kedge.report.runs import Run, seed_groups
from kedge.report.tables.comparison import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OTHERWISE = "kedge compare prints accuracies without matplotlib."
Points = dict[float, float]
Group = list[Run]


@dataclass(frozen=True)
class Panel:
    """One plot: its metrics, the label of its y axis, and the scale."""

    metrics: tuple[str, ...]
    label: str
    log: bool = False

    def shown(self, groups: Sequence[Group]) -> str | None:
        """The first of its metrics that a run has, or None."""
        runs = (run for group in groups for run in group)
        available = {m for run in runs for m in self.metrics if run.curve(m) and is_informative(run, m)}
        return next((metric for metric in self.metrics if metric in available), None)


def is_informative(run: Run, metric: str) -> bool:
    """Whether a metric is more than a copy: a probe equals the round's drift if all clients take part."""
    if not metric.startswith("probe."):
        return True
    drift = f"drift.{metric.removeprefix('probe.')}"
    return any(line[metric] != line.get(drift) for line in run.history if metric in line)


def curves(panels: Sequence[Panel], runs: Sequence[Run]) -> bytes | None:
    """A PNG of the panels for which a run has a value, or None."""
    groups = seed_groups(runs)
    shown = [(panel, metric) for panel in panels if (metric := panel.shown(groups))]

    def fill(panel_axes: "Sequence[Axes]") -> None:
        for axes, (panel, metric) in zip(panel_axes, shown, strict=True):
            for number, group in enumerate(groups):
                draw_line(axes, number, names(groups)[number], [dict(run.curve(metric)) for run in group])
            axes.set_xlabel("round")
            axes.set_ylabel(panel.label, fontsize=9)
            axes.set_title(metric, fontsize=9)
            if panel.log:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter(minor_label(axes))

    return panels_png(len(shown), fill) if shown else None


def draw_line(axes: "Axes", number: int, name: str, seeds: Sequence[Points]) -> None:
    """Draw the mean of a method and the range over its seeds, at each x that all seeds have a value for."""
    known = [points for points in seeds if points]
    xs = sorted(set.intersection(*(set(points) for points in known))) if known else []
    if not xs:
        return
    values = [[points[x] for points in known] for x in xs]
    color = METHODS[number % len(METHODS)]
    marker = "o" if len(xs) < 20 else None
    means = [sum(column) / len(column) for column in values]
    axes.plot(xs, means, "-", color=color, label=name, linewidth=1.6, marker=marker, markersize=3.5)
    if len(known) > 1:
        low, high = [min(column) for column in values], [max(column) for column in values]
        axes.fill_between(xs, low, high, color=color, alpha=0.15)


def minor_label(axes: "Axes") -> Callable[[float, float], str]:
    """A formatter of minor ticks that labels them only if the axis spans few powers of ten."""

    def label(value: float, position: float) -> str:
        low, high = axes.get_ylim()
        return f"{value:g}" if high < 20 * low else ""

    return label


def names(groups: Sequence[Group]) -> list[str]:
    """The name of each group: its method, or its folder if several groups have the same method."""
    labels = [label_of(group) for group in groups]

    def folder(group: Group) -> str:
        first = group[0].folder
        return (first.parent if len(group) > 1 and first.name.startswith("seed") else first).name

    return [
        folder(group) if labels.count(label) > 1 else label
        for group, label in zip(groups, labels, strict=True)
    ]


def panels_png(count: int, fill: "Callable[[Sequence[Axes]], None]") -> bytes:
    """A PNG of `count` plots in a row, drawn by `fill`, with one legend."""
    require_matplotlib(OTHERWISE)
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(0.8 + 4.4 * count, 3.8, dpi=110)
    panel_axes = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    fill(panel_axes)
    entries: dict[str, Any] = {}
    for axes in panel_axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes.get_legend_handles_labels()
        entries |= {
            label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries
        }
    figure.legend(
        [*entries.values()], [*entries], loc="outside lower center", ncols=min(len(entries), 5) or 1,
        frameon=False, fontsize=9,
    )  # fmt: skip
    return png(figure)


def single(
    runs: Sequence[Run], points: Callable[[Run], Points], x_label: str, y_label: str, title: str
) -> bytes | None:
    """A PNG of one plot of `points` of every run, or None if no run has points."""
    groups = seed_groups(runs)
    by_group = [[points(run) for run in group] for group in groups]
    if not any(run_points for group in by_group for run_points in group):
        return None

    def fill(panel_axes: "Sequence[Axes]") -> None:
        (axes,) = panel_axes
        for number, seeds in enumerate(by_group):
            draw_line(axes, number, names(groups)[number], seeds)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label, fontsize=9)
        axes.set_title(title, fontsize=9)

    return panels_png(1, fill)
