"""Panels of metrics over the rounds, one line a method: mean over the seeds, and their range.

A panel names metrics in the order of preference and shows the first that a run here has. Rounds without a
value are gaps that the line passes over. Everything comes from the histories. Needs the extra `plot`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kedge.report.plots.accuracy import COLORS
from kedge.report.plots.png import require_matplotlib, saved
from kedge.report.runs import Run, grouped
from kedge.report.tables.comparison import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OTHERWISE = "kedge compare shows the accuracies without."
Points = dict[float, float]
Group = list[Run]


@dataclass(frozen=True)
class Panel:
    """One plot: which metrics, what they are, on which scale."""

    metrics: tuple[str, ...]
    says: str
    log: bool = False

    def shown(self, groups: Sequence[Group]) -> str | None:
        """The first of its metrics that a run has."""
        every = (run for group in groups for run in group)
        there = {m for run in every for m in self.metrics if run.curve(m) and tells(run, m)}
        return next((metric for metric in self.metrics if metric in there), None)


def tells(run: Run, metric: str) -> bool:
    """Whether a metric says what no other does: the probe of a round of everybody is its own drift."""
    if not metric.startswith("probe."):
        return True
    twin = f"drift.{metric.removeprefix('probe.')}"
    return any(line[metric] != line.get(twin) for line in run.history if metric in line)


def curves(panels: Sequence[Panel], runs: Sequence[Run]) -> bytes | None:
    """The panels that the runs have something for, side by side; None where there is no such panel."""
    groups = grouped(runs)
    found = [(panel, metric) for panel in panels if (metric := panel.shown(groups))]

    def fill(axes: "Sequence[Axes]") -> None:
        for one, (panel, metric) in zip(axes, found, strict=True):
            for number, group in enumerate(groups):
                line(one, number, names(groups)[number], [dict(run.curve(metric)) for run in group])
            one.set_xlabel("round")
            one.set_ylabel(panel.says, fontsize=9)
            one.set_title(metric, fontsize=9)
            if panel.log:
                one.set_yscale("log")
                one.yaxis.set_major_formatter("{x:g}")
                one.yaxis.set_minor_formatter(sparing(one))

    return drawn(len(found), fill) if found else None


def line(axes: "Axes", number: int, name: str, seeds: Sequence[Points]) -> None:
    """A method's line over what all its seeds have, and the range between them; none where it is nothing."""
    there = [points for points in seeds if points]
    places = sorted(set.intersection(*(set(points) for points in there))) if there else []
    if not places:
        return
    values = [[points[x] for points in there] for x in places]
    color = COLORS[number % len(COLORS)]
    dot = "o" if len(places) < 20 else None
    middle = [sum(at) / len(at) for at in values]
    axes.plot(places, middle, "-", color=color, label=name, linewidth=1.6, marker=dot, markersize=3.5)
    if len(there) > 1:
        low, high = [min(at) for at in values], [max(at) for at in values]
        axes.fill_between(places, low, high, color=color, alpha=0.15)


def sparing(axes: "Axes") -> Callable[[float, float], str]:
    """Labels between the powers of ten, where the axis spans too few of those to be read without."""

    def label(value: float, place: float) -> str:
        low, high = axes.get_ylim()
        return f"{value:g}" if high < 20 * low else ""

    return label


def names(groups: Sequence[Group]) -> list[str]:
    """The methods; those of equal name by their folders."""
    labels = [label_of(group) for group in groups]

    def folder(group: Group) -> str:
        own = group[0].folder
        return (own.parent if len(group) > 1 and own.name.startswith("seed") else own).name

    return [
        folder(group) if labels.count(label) > 1 else label
        for group, label in zip(groups, labels, strict=True)
    ]


def drawn(count: int, fill: "Callable[[Sequence[Axes]], None]") -> bytes:
    """A PNG of so many plots in a row, filled by the function; one legend for all."""
    require_matplotlib(OTHERWISE)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(0.8 + 4.4 * count, 3.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    fill(axes)
    entries: dict[str, Any] = {}
    for one in axes:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
        one.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = one.get_legend_handles_labels()
        entries |= {
            label: handle for label, handle in zip(labels, handles, strict=True) if label not in entries
        }
    figure.legend(
        [*entries.values()], [*entries], loc="outside lower center", ncols=min(len(entries), 5) or 1,
        frameon=False, fontsize=9,
    )  # fmt: skip
    return saved(figure)


def single(
    runs: Sequence[Run], points: Callable[[Run], Points], across: str, up: str, title: str
) -> bytes | None:
    """One plot of any points of every run; None where no run has some."""
    groups = grouped(runs)
    found = [[points(run) for run in group] for group in groups]
    if not any(one for group in found for one in group):
        return None

    def fill(axes: "Sequence[Axes]") -> None:
        for number, seeds in enumerate(found):
            line(axes[0], number, names(groups)[number], seeds)
        axes[0].set_xlabel(across)
        axes[0].set_ylabel(up, fontsize=9)
        axes[0].set_title(title, fontsize=9)

    return drawn(1, fill)
