"""The three panels of FedBug's figure 2 as a PNG, from the result of `kedge theory`. Needs the extra `plot`.

Panel a plots simulated against theoretical contraction ratios of FedAvg, one dot per round and seed. Panel b
plots the loss of the server's model over rounds. Panel c plots each seed's ratio with FedBug and FedBABU
against its ratio with FedAvg.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    """The content of the PNG file."""
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
    names = [one["method"] + wins(one) for one in methods]
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), **LEGEND)
    return png(figure)


def wins(method: Mapping[str, Any]) -> str:
    """The number of seeds in which a method contracts faster than the first one, for the legend."""
    return f": faster in {win_text(method['faster'])}" if method["faster"] else ""


def color(method: Mapping[str, Any], place: int) -> str:
    """The color of a method; FedBABU, the limit of FedBug, is gray."""
    return GRAY if method["frozen"] is None else METHODS[place % (len(METHODS) - 1)]


def theory_panel(axes: "Axes", method: Mapping[str, Any]) -> None:
    """Panel a, with different dots for the first round, which is the farthest from the minimum."""
    rounds = method["by_round"]
    each = [
        (theory, printed, ratio, number)
        for seed in zip(rounds["theory"], rounds["printed"], rounds["ratio"], strict=True)
        for number, (theory, printed, ratio) in enumerate(zip(*seed, strict=True))
        if ratio is not None and theory is not None
    ]
    seen = [one for one in each if max(one[0], one[2]) <= LIMIT]
    if any(abs(printed - theory) > SAME for theory, printed, _, _ in seen):
        axes.scatter([k[1] for k in seen], [k[2] for k in seen], 7, PRINTED, label="by the printed formula")
    later, first = [k for k in seen if k[3]], [k for k in seen if not k[3]]
    filled: dict[str, Any] = {"c": METHODS[0], "alpha": 0.4, "linewidths": 0, "s": 9, "label": "later rounds"}
    hollow: dict[str, Any] = {
        "c": "none",
        "edgecolors": INK,
        "linewidths": 1.1,
        "s": 20,
        "label": "first round",
    }
    for chosen, marks in ((later, filled), (first, hollow)):
        axes.scatter([k[0] for k in chosen], [k[2] for k in chosen], **marks)
    correlation = method["correlation"]
    names = {"rounds": "correlation", "first_round": "first round"}
    lines = [f"{name} {correlation[key]:.3f}" for key, name in names.items() if correlation[key] is not None]
    add_note(axes, 0.03, 0.97, "\n".join(lines + omission(len(each) - len(seen))), "left")
    draw_diagonal(axes, [k[place] for k in seen for place in (0, 2)])
    title = f"a   {method['method']}: theory and simulation"
    set_labels(axes, title, "theoretical contraction ratio", "simulated contraction ratio")
    axes.legend(loc="best", **LEGEND)


def loss_panel(axes: "Axes", methods: Sequence[Mapping[str, Any]]) -> None:
    """Panel b, with quartiles of the first method and of the FedBug with the most frozen steps."""
    most = max(methods, key=lambda one: -1 if one["frozen"] is None else one["frozen"])
    for place, one in enumerate(methods):
        lower, median, upper = (drawable(one["loss"][name]) for name in ("lower", "median", "upper"))
        rounds, shade = range(len(median)), color(one, place)
        style = (0, (4, 1.5)) if one["frozen"] is None else "-"
        axes.plot(rounds, median, color=shade, linewidth=1.8, linestyle=style)
        if place == 0 or one is most:
            axes.fill_between(rounds, lower, upper, color=shade, alpha=0.14, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(LOWEST, axes.get_ylim()[0]))
    set_labels(axes, "b   Training loss, median of the seeds", "round", "mean (f − 1)² of the clients")
    names = methods[0]["method"] + ("" if most is methods[0] else f" and {most['method']}")
    add_note(axes, 0.97, 0.97, f"shaded: quartiles of\n{names}", "right")


def seeds_panel(axes: "Axes", methods: Sequence[Mapping[str, Any]]) -> None:
    """Panel c: ratios of the seeds against those with the first method."""
    first, *others = methods
    places, omitted = [], 0
    for place, one in enumerate(others, 1):
        pairs = zip(first["by_seed"]["ratio"], one["by_seed"]["ratio"], strict=True)
        both = [(x, y) for x, y in pairs if x is not None and y is not None]
        seen = [pair for pair in both if max(pair) <= LIMIT]
        omitted += len(both) - len(seen)
        places += [value for pair in seen for value in pair]
        marks: dict[str, Any] = {"c": color(one, place), "alpha": 0.8, "linewidths": 0, "s": 18}
        if one["frozen"] is None:
            marks = {"c": "none", "edgecolors": GRAY, "linewidths": 1.0, "marker": "D", "s": 15}
        axes.scatter([x for x, _ in seen], [y for _, y in seen], **marks)
    draw_diagonal(axes, places)
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
