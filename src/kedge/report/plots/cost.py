"""The cost of runs as a figure, from their histories alone: areas are costs. Needs the extra `plot`.

Rows are runs, columns kinds of cost. A phase is a bar as wide as its rounds and as high as the average cost
of one of them. All bars of a column have the same scale. Bytes up are stacked on bytes down.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kedge.report.costs import History, phases
from kedge.report.numbers import with_prefix
from kedge.report.plots.colors import DIM, INK, LINE
from kedge.report.plots.curves import names
from kedge.report.plots.png import new_figure, png
from kedge.report.runs import Run, seed_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FULL, PALE = "#1b6aaf", "#a6cde4"
TICK_DISTANCE = 0.13  # of the axis: closer ticks would overlap

Phase = Mapping[str, Any]


class Kind(NamedTuple):
    """A kind of cost: the parts of its bars from below, as keys of a phase with a color."""

    name: str
    parts: tuple[tuple[str, str], ...]
    unit: str = ""

    def per_round(self, phase: Phase) -> float:
        """The average cost of a round of the phase."""
        return float(sum(phase[key] for key, _ in self.parts)) / int(phase["rounds"])


KINDS = (
    Kind("parameters updated", (("updates", FULL),)),
    Kind("multiply-adds", (("macs", FULL),)),
    Kind("bytes down, and up on top", (("bytes_down", FULL), ("bytes_up", PALE)), "B"),
)


def cost_figure(runs: Sequence[tuple[str, History]], title: str = "costs of rounds") -> "Figure":
    """A figure of the phases of `runs`, pairs of name and history."""
    by_run = [(name, phases(history)) for name, history in runs]
    rounds = max((run_phases[-1]["last_round"] for _, run_phases in by_run if run_phases), default=1)
    figure = new_figure(10.9, 0.9 + 1.75 * len(by_run), dpi=144)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.06)
    grid = figure.subplots(len(by_run), len(KINDS), sharey="col", squeeze=False)
    figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold", color=INK)
    for column, kind in enumerate(KINDS):
        per_round = [kind.per_round(phase) for _, run_phases in by_run for phase in run_phases]
        highest = max(per_round, default=0.0)
        for row, (name, run_phases) in enumerate(by_run):
            axes = grid[row, column]
            axes.set_xlim(0.5, rounds + 0.5)
            axes.set_ylim(0, highest or 1.0)
            draw_phases(axes, kind, run_phases, rounds)
            total = with_prefix(sum(phase[key] for phase in run_phases for key, _ in kind.parts), kind.unit)
            head = (
                f"{kind.name}\nheight: at most {with_prefix(highest, kind.unit)} a round\n\n"
                if not row
                else ""
            )
            axes.set_title(
                f"{head}{name if not column else ''}\n{total} in all", loc="left", size=10.5, color=INK
            )
    return figure


def draw_phases(axes: "Axes", kind: Kind, run_phases: Sequence[Phase], rounds: int) -> None:
    """Draw the bars of one run and one kind of cost, with ticks at the first rounds of its phases."""
    starts = [phase["first_round"] - 0.5 for phase in run_phases]
    widths = [phase["rounds"] for phase in run_phases]
    bottom = [0.0] * len(run_phases)
    for key, color in kind.parts:
        heights = [phase[key] / phase["rounds"] for phase in run_phases]
        axes.bar(starts, heights, widths, bottom, align="edge", color=color)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.vlines(starts[1:], 0, axes.get_ylim()[1], color="white", linewidth=1)
    ticks: dict[int, str] = {}
    for start in (phase["first_round"] for phase in run_phases):
        if not ticks or start - max(ticks) >= TICK_DISTANCE * rounds:
            ticks[start] = str(start)
    last = run_phases[-1]["last_round"] if run_phases else 0
    if last - max(ticks, default=last) >= 2 * TICK_DISTANCE * rounds:
        ticks[last] = f"round {last}"
    for tick in axes.set_xticks(list(ticks), list(ticks.values())):
        side: Literal["left", "right"] = "right" if tick.label1.get_text().startswith("round") else "left"
        tick.label1.set_horizontalalignment(side)
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=9, colors=DIM, labelbottom=True)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)


def cost_png(runs: Sequence[Run]) -> bytes | None:
    """The cost figure of runs as a PNG, with the first seed of each group; None if no history has costs."""
    groups = seed_groups(runs)
    if not any("cost" in line for group in groups for line in group[0].history):
        return None
    histories = (group[0].history for group in groups)
    return png(cost_figure(list(zip(names(groups), histories, strict=True))))
