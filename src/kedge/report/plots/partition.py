"""A partition as a figure: samples of each client and class, class totals, client sizes. Needs `plot`.

Rows are clients, columns classes. Few clients are drawn as bubbles whose area is the number of samples, many
as a heat map. Bars above show the class totals, bars to the right the client sizes. For many clients the
right side is the curve of all sizes from the largest down.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kedge.report.numbers import with_commas
from kedge.report.partition import PartitionStatistics
from kedge.report.partition_rows import Rows, heading, shown_rows, subheading
from kedge.report.plots.colors import DIM, GAMMA, INK, LINE, SCALE, shade
from kedge.report.plots.png import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOTAL, BAR, CURVE, BELOW = "#b8c0c8", "#f2c15d", "#c98a00", "#fbe8c4"
TICKS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # of the color bar
WIDTH, LEFT, CELLS, GAP, SIZES = 10.9, 0.9, 7.6, 0.2, 1.4  # inches from left to right
TOP, TOTALS, BOTTOM = 0.75, 0.5, 1.35  # inches: above the bars of totals, these bars, below the rows
SMALLEST = 0.12  # diameter of the smallest bubble, in rows: a single sample stays visible


def partition_figure(partition: PartitionStatistics) -> "Figure":
    """The figure of a partition."""
    rows = shown_rows(partition)
    count = len(rows.clients)
    body = count * min(7.6 / count, 0.55) if rows.few else min(0.33 * count, 7.7)
    height = TOP + TOTALS + GAP / 2 + body + BOTTOM
    figure = new_figure(WIDTH, height, dpi=144, constrained=False)
    figure.text(LEFT / WIDTH, 1 - 0.25 / height, heading(partition), size=14, weight="bold", color=INK,
                va="center", parse_math=False)  # fmt: skip
    figure.text(LEFT / WIDTH, 1 - 0.53 / height, subheading(partition), size=11.5, color=DIM, va="center")
    grid = figure.add_gridspec(
        2, 2, width_ratios=(CELLS, SIZES), height_ratios=(TOTALS, body),
        wspace=2 * GAP / (CELLS + SIZES), hspace=GAP / (TOTALS + body),
        left=LEFT / WIDTH, right=(LEFT + CELLS + GAP + SIZES) / WIDTH,
        top=1 - TOP / height, bottom=BOTTOM / height,
    )  # fmt: skip
    cells = figure.add_subplot(grid[1, 0])
    totals = figure.add_subplot(grid[0, 0], sharex=cells)
    sizes = figure.add_subplot(grid[1, 1], sharey=cells)
    draw_cells(cells, rows)
    draw_totals(totals, partition)
    draw_sizes(sizes, rows)
    draw_legend(figure.add_axes((LEFT / WIDTH, 0.48 / height, 4.2 / WIDTH, 0.14 / height)), rows)
    return figure


def draw_cells(axes: "Axes", rows: Rows) -> None:
    """Draw bubbles or a heat map of the classes of each client."""
    from matplotlib.collections import EllipseCollection
    from matplotlib.ticker import MaxNLocator

    count, classes = rows.counts.shape
    bottom = count if rows.few else rows.population
    axes.set_xlim(-0.5, classes - 0.5)
    axes.set_ylim(bottom - 0.5 * rows.few, -0.5 * rows.few)
    if rows.bubbles:
        axes.hlines(range(count), -0.5, classes - 0.5, color=LINE, linewidth=1, zorder=0)
        present = np.argwhere(rows.counts > 0)
        box = axes.get_window_extent()
        row_per_column = min(1.0, box.width / classes / (box.height / count))
        diameters = 0.94 * row_per_column * np.sqrt(rows.counts / rows.counts.max())[rows.counts > 0]
        diameters = np.maximum(diameters, SMALLEST)
        axes.add_collection(
            EllipseCollection(
                diameters, diameters, np.zeros(len(present)), units="y", offsets=present[:, ::-1],
                offset_transform=axes.transData, linewidths=0,
                facecolors=[shade(rows.shares[r, c]) for r, c in present.tolist()],
            )
        )  # fmt: skip
    else:
        edges = np.linspace(-0.5, count - 0.5, count + 1) if rows.few else np.linspace(0, bottom, count + 1)
        shares = np.ma.masked_equal(rows.shares, 0)
        axes.pcolormesh(np.arange(classes + 1) - 0.5, edges, shares, **scale())
    axes.xaxis.set_major_locator(MaxNLocator(min(classes, 20), integer=True, steps=[1, 2, 5, 10]))
    max_ticks = 40 if rows.few else 12
    axes.yaxis.set_major_locator(MaxNLocator(min(bottom, max_ticks), integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: with_commas(value))
    axes.set_xlabel("class", color=INK)
    axes.set_ylabel(rows.axis, color=INK)
    axes.tick_params(length=0, colors=DIM)
    axes.spines[:].set_visible(not rows.bubbles)
    axes.spines[:].set_color(LINE)


def draw_totals(axes: "Axes", partition: PartitionStatistics) -> None:
    """Draw a bar for the samples of each class."""
    totals = partition.counts.sum(axis=0)
    axes.bar(range(partition.classes), totals, width=2 / 3, color=TOTAL)
    axes.text(-0.012, 0.5, "all", transform=axes.transAxes, ha="right", va="center", color=DIM)
    axes.set_axis_off()


def draw_sizes(axes: "Axes", rows: Rows) -> None:
    """Draw bars of the clients' sizes, or for many clients the curve of sizes from the largest down."""
    axes.set_xlabel(rows.sizes_axis, color=INK)
    axes.tick_params(length=0, colors=DIM)
    axes.tick_params(left=False, labelleft=False)
    axes.spines[:].set_visible(False)
    if rows.few:
        bars = axes.barh(range(len(rows.sizes)), rows.sizes, height=0.6, color=BAR)
        axes.bar_label(bars, [with_commas(size) for size in rows.sizes.tolist()], padding=3, color=DIM)
        axes.tick_params(labelbottom=False)
        return
    edges = np.linspace(0, rows.population, len(rows.sizes) + 1)
    axes.stairs(rows.sizes, edges, orientation="horizontal", fill=True, color=BELOW)
    axes.stairs(rows.sizes, edges, orientation="horizontal", color=CURVE, linewidth=1.8)
    axes.set_xlim(0, rows.sizes.max() * 1.02)
    axes.set_xticks([0, int(rows.sizes.max())], ["0", with_commas(rows.sizes.max())])


def draw_legend(axes: "Axes", rows: Rows) -> None:
    """Draw the color bar, and the meaning of colors and areas beside it."""
    from matplotlib.cm import ScalarMappable

    bar = axes.figure.colorbar(ScalarMappable(**scale()), cax=axes, orientation="horizontal", ticks=TICKS)
    bar.outline.set_visible(False)
    bar.ax.set_xticklabels([f"{100 * share:g} %" for share in TICKS])
    bar.ax.tick_params(length=0, labelsize=9, colors=DIM)
    axes.text(1.04, 0.5, rows.legend, transform=axes.transAxes, va="center", color=DIM)


def scale() -> dict[str, Any]:
    """The color map of shares and its norm, equal to `shade`."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    return {"cmap": LinearSegmentedColormap.from_list("shares", SCALE), "norm": PowerNorm(GAMMA, 0, 1)}
