"""The three panels of FedBug's figure 2 as a PNG, from the result of `kedge theory`. Needs the extra `plot`.

Panel a plots simulated against theoretical contraction ratios of FedAvg, one dot per round and seed. Panel b
plots the loss of the server's model over rounds. Panel c plots each seed's ratio with FedBug and FedBABU
against its ratio with FedAvg.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kedge.report.plots.colors import DIM, INK, LINE, METHODS
from kedge.report.plots.png import new_figure, png, require_matplotlib
from kedge.report.tables.theory import headline, win_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRINTED, GRAY = "#b8c0c8", "#6e7781"
LEGEND: Mapping[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK, "handletextpad": 0.5}
LIMIT = 2.0  # larger ratios belong to seeds that diverge and are not drawn
NARROW = 0.02  # least range of an axis of ratios
SAME = 1e-9
OTHERWISE = "The table and --json need no matplotlib."
LOWEST, HIGHEST = 1e-24, 1e12  # limits of the loss: smaller values are rounding, larger values diverge


def theory_png(result: Mapping[str, Any]) -> bytes:
    """The figure of `result` as the content of a PNG file."""
    require_matplotlib(OTHERWISE)
    figure = new_figure(13.2, 5.2)
    figure.set_layout_engine("constrained", w_pad=0.14, h_pad=0.08)
    panels = figure.subplots(1, 3)
    methods = result["methods"]
    theory_panel(panels[0], methods[0])
    loss_panel(panels[1], methods)
    seeds_panel(panels[2], methods)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(DIM)
        axes.tick_params(colors=DIM, labelsize=9)
        axes.grid(color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
    figure.suptitle(headline(result), fontsize=10, color=DIM)
    lines = panels[1].get_lines()
    names = [method["method"] + wins(method) for method in methods]
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), **LEGEND)
    return png(figure)


def wins(method: Mapping[str, Any]) -> str:
    """The number of seeds in which a method contracts faster than the first one, for the legend."""
    return f": faster in {win_text(method['faster'])}" if method["faster"] else ""


def color(method: Mapping[str, Any], index: int) -> str:
    """The color of the method number `index`; FedBABU, the limit of FedBug, is gray."""
    return GRAY if method["frozen"] is None else METHODS[index % (len(METHODS) - 1)]


class Dot(NamedTuple):
    """A dot of panel a: the ratios of one round of one seed."""

    theory: float
    printed: float
    ratio: float
    round: int


def theory_panel(axes: "Axes", method: Mapping[str, Any]) -> None:
    """Draw panel a, with different dots for the first round, which is the farthest from the minimum."""
    rounds = method["by_round"]
    dots = [
        Dot(theory, printed, ratio, number)
        for seed in zip(rounds["theory"], rounds["printed"], rounds["ratio"], strict=True)
        for number, (theory, printed, ratio) in enumerate(zip(*seed, strict=True))
        if ratio is not None and theory is not None
    ]
    shown = [dot for dot in dots if max(dot.theory, dot.ratio) <= LIMIT]
    if any(abs(dot.printed - dot.theory) > SAME for dot in shown):
        printed_xs, ys = [dot.printed for dot in shown], [dot.ratio for dot in shown]
        axes.scatter(printed_xs, ys, 7, PRINTED, label="by the printed formula")
    later, first = [dot for dot in shown if dot.round], [dot for dot in shown if not dot.round]
    filled: dict[str, Any] = {"c": METHODS[0], "alpha": 0.4, "linewidths": 0, "s": 9, "label": "later rounds"}
    hollow: dict[str, Any] = {
        "c": "none",
        "edgecolors": INK,
        "linewidths": 1.1,
        "s": 20,
        "label": "first round",
    }
    for group, marks in ((later, filled), (first, hollow)):
        axes.scatter([dot.theory for dot in group], [dot.ratio for dot in group], **marks)
    correlation = method["correlation"]
    names = {"rounds": "correlation", "first_round": "first round"}
    lines = [f"{name} {correlation[key]:.3f}" for key, name in names.items() if correlation[key] is not None]
    add_note(axes, 0.03, 0.97, "\n".join(lines + omission(len(dots) - len(shown))), "left")
    draw_diagonal(axes, [value for dot in shown for value in (dot.theory, dot.ratio)])
    title = f"a   {method['method']}: theory and simulation"
    set_labels(axes, title, "theoretical contraction ratio", "simulated contraction ratio")
    axes.legend(loc="best", **LEGEND)


def loss_panel(axes: "Axes", methods: Sequence[Mapping[str, Any]]) -> None:
    """Draw panel b, with quartiles of the first method and of the FedBug with the most frozen steps."""
    most_frozen = max(methods, key=lambda method: -1 if method["frozen"] is None else method["frozen"])
    for index, method in enumerate(methods):
        lower, median, upper = (drawable(method["loss"][name]) for name in ("lower", "median", "upper"))
        rounds, shade = range(len(median)), color(method, index)
        style = (0, (4, 1.5)) if method["frozen"] is None else "-"
        axes.plot(rounds, median, color=shade, linewidth=1.8, linestyle=style)
        if index == 0 or method is most_frozen:
            axes.fill_between(rounds, lower, upper, color=shade, alpha=0.14, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(LOWEST, axes.get_ylim()[0]))
    set_labels(axes, "b   Training loss, median of the seeds", "round", "mean (f − 1)² of the clients")
    names = methods[0]["method"] + ("" if most_frozen is methods[0] else f" and {most_frozen['method']}")
    add_note(axes, 0.97, 0.97, f"shaded: quartiles of\n{names}", "right")


def seeds_panel(axes: "Axes", methods: Sequence[Mapping[str, Any]]) -> None:
    """Draw panel c: ratios of the seeds against those with the first method."""
    first, *others = methods
    values, omitted = [], 0
    for index, method in enumerate(others, 1):
        pairs = zip(first["by_seed"]["ratio"], method["by_seed"]["ratio"], strict=True)
        complete = [(x, y) for x, y in pairs if x is not None and y is not None]
        shown = [pair for pair in complete if max(pair) <= LIMIT]
        omitted += len(complete) - len(shown)
        values += [value for pair in shown for value in pair]
        marks: dict[str, Any] = {"c": color(method, index), "alpha": 0.8, "linewidths": 0, "s": 18}
        if method["frozen"] is None:
            marks = {"c": "none", "edgecolors": GRAY, "linewidths": 1.0, "marker": "D", "s": 15}
        axes.scatter([x for x, _ in shown], [y for _, y in shown], **marks)
    draw_diagonal(axes, values)
    name = f"ratio under {first['method']}"
    set_labels(axes, "c   Contraction of every seed", name, "ratio under the other methods")
    lines = ["below the line:", f"faster than {first['method']}", *omission(omitted)]
    add_note(axes, 0.03, 0.97, "\n".join(lines), "left")


def omission(count: int) -> list[str]:
    """A note on the number of dots outside the axes."""
    return [f"{count} above {LIMIT:g} not drawn"] if count else []


def drawable(values: Sequence[float | None]) -> list[float]:
    """Values clamped to the limits of the axis; None becomes NaN, which matplotlib does not draw."""
    return [float("nan") if v is None else min(max(v, LOWEST / 10), HIGHEST) for v in values]


def draw_diagonal(axes: "Axes", values: Sequence[float]) -> None:
    """Draw the diagonal over the range of `values`, and leave room for a note above."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low, high = min(low, high - NARROW), max(high, low + NARROW)
    axes.plot([low, high], [low, high], color=DIM, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top + 0.13 * (top - bottom))


def set_labels(axes: "Axes", title: str, x: str, y: str) -> None:
    """Set the title and the labels of the axes."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)


def add_note(axes: "Axes", x: float, y: float, text: str, side: str) -> None:
    """Add a note inside the panel."""
    axes.text(x, y, text, transform=axes.transAxes, va="top", ha=side, fontsize=9, color=INK)
