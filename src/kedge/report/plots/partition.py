"""The picture of who holds what, as shapes; PNG and HTML draw the same ones.

Rows are clients, columns classes: bubbles whose area is the number of samples, or the cells of a heat map.
Above stand the classes of the whole. To the right, few clients have their sizes beside their row; of many, a
curve shows the sizes from the largest down.
"""

from dataclasses import dataclass

import numpy as np

from kedge.report.partition import Deal, counted, number, rounded
from kedge.report.plots.partition_rows import Rows, rows_of
from kedge.report.plots.shapes import DIM, LINE, Box, Circle, Drawing, Shape, Text, shade

LEFT, RIGHT, TOP, GAP, SIZES = 64, 24, 104, 10, 132  # where the grid begins, and what surrounds it
ALL, BAR = "#b8c0c8", "#f2c15d"
PALE, EDGE = "#fbe8c4", "#c98a00"  # below and on the curve of sizes
LEGEND = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows and columns with their place on the canvas; cells have whole pixels, so that they join."""

    rows: Rows
    wide: int
    high: int

    @property
    def right(self) -> int:
        """Where the columns end."""
        return LEFT + self.wide * int(self.rows.counts.shape[1])

    @property
    def bottom(self) -> int:
        """Where the rows end."""
        return TOP + self.high * len(self.rows.clients)


def drawing(deal: Deal) -> Drawing:
    """The picture of a deal."""
    rows = rows_of(deal)
    count = len(rows.clients)
    if rows.bubbles:
        grid = Grid(rows, between(16, 600 // deal.classes, 56), between(16, 520 // count, 40))
    else:
        grid = Grid(rows, between(1, 600 // deal.classes, 56), between(2, 560 // count, 24))
    name = shortened(f"{deal.dataset}, {deal.partition}")
    least = max(600, LEFT + RIGHT + round(8.5 * len(name)))
    width = max(grid.right + GAP + SIZES + RIGHT, least)
    inside = bubbles(grid) if rows.bubbles else cells(grid)
    sizes = bars(grid) if rows.few else curve(grid)
    outside = (*whole(deal, grid), *axes(deal, grid), *sizes, *legend(grid))
    return Drawing(width, grid.bottom + 80, name, (*heading(deal, name), *inside, *outside))


def shortened(name: str, most: int = 90) -> str:
    """A long name without its middle; some have paths in them."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[1 - most // 2 :]}"


def between(least: int, value: int, most: int) -> int:
    """The value, or the bound it exceeds."""
    return max(least, min(value, most))


def heading(deal: Deal, name: str) -> list[Shape]:
    """Dataset and partition; the heterogeneity."""
    value = f"heterogeneity {rounded(deal.heterogeneity.value)} (0: random deal, 1: one class each)"
    line = f"{counted(deal.clients, 'client')} · {value}"
    return [Text(LEFT, 18, name, 14, "start", bold=True), Text(LEFT, 38, line, 11.5, "start", DIM)]


def whole(deal: Deal, grid: Grid) -> list[Shape]:
    """The classes of all samples as bars above the columns."""
    totals, full = deal.counts.sum(axis=0), 36
    base, inset = TOP - GAP, grid.wide // 6
    found: list[Shape] = [Text(LEFT - 8, base - full / 2, "all", 11, "end", DIM)]
    for label in np.flatnonzero(totals).tolist():
        total, share = int(totals[label]), float(totals[label] / totals.sum())
        tall = max(1, round(full * total / totals.max()))
        said = f"class {label}: {counted(total, 'sample')} of all clients, {100 * share:.1f} %"
        x = LEFT + label * grid.wide + inset
        found.append(Box(x, base - tall, grid.wide - 2 * inset, tall, ALL, said))
    return found


def bubbles(grid: Grid) -> list[Shape]:
    """A circle for every class a client holds; even a single sample is seen."""
    rows, largest = grid.rows, 0.47 * min(grid.wide, grid.high)
    lines: list[Shape] = [
        Box(LEFT, TOP + row * grid.high + grid.high // 2, grid.right - LEFT, 1, LINE)
        for row in range(len(rows.clients))
    ]
    radii = np.maximum(largest * np.sqrt(rows.counts / rows.counts.max()), 1.2)
    return lines + [
        Circle(
            LEFT + (c + 0.5) * grid.wide, TOP + r * grid.high + grid.high // 2 + 0.5, float(radii[r, c]),
            shade(rows.shares[r, c]), rows.told(r, c),
        )
        for r, c in np.argwhere(rows.counts > 0).tolist()
    ]  # fmt: skip


def cells(grid: Grid) -> list[Shape]:
    """A cell for every class that a row holds; the others stay empty."""
    rows, wide, high = grid.rows, grid.wide, grid.high
    across, down = grid.right - LEFT, grid.bottom - TOP
    found: list[Shape] = [
        Box(LEFT - 1, TOP - 1, across + 2, down + 2, LINE),
        Box(LEFT, TOP, across, down, "#ffffff"),
    ]
    return found + [
        Box(LEFT + c * wide, TOP + r * high, wide, high, shade(rows.shares[r, c]), rows.told(r, c))
        for r, c in np.argwhere(rows.counts > 0).tolist()
    ]


def axes(deal: Deal, grid: Grid) -> list[Shape]:
    """Numbers of classes and clients, as many as there is room for, and what they are."""
    wide, high = grid.wide, float(grid.high)
    every = step_of(wide, 7 * len(str(deal.classes - 1)) + 6)
    columns = [(LEFT + (label + 0.5) * wide, label) for label in range(0, deal.classes, every)]
    if grid.rows.few:
        places = [(TOP + (row + 0.5) * high, row) for row in range(0, deal.clients, step_of(high, 13))]
    else:  # how many clients lie above
        high = (grid.bottom - TOP) / deal.clients
        places = [(TOP + at * high, at) for at in range(0, deal.clients + 1, step_of(high, 40))]
    said = "client" if grid.rows.few else "clients, by largest class"
    if len(grid.rows.clients) < deal.clients:
        said += f" ({len(grid.rows.clients)} of {deal.clients:,} drawn)"
    return [
        *(Text(x, grid.bottom + 11, str(label), 10, color=DIM) for x, label in columns),
        *(Text(LEFT - 8, y, number(at), 10, "end", DIM) for y, at in places),
        Text((LEFT + grid.right) / 2, grid.bottom + 28, "class"),
        Text(12, (TOP + grid.bottom) / 2, said, upright=True),
    ]


def step_of(size: float, room: float) -> int:
    """The least of 1, 2, 5, 10, 20, … things of this size that give a label room."""
    ten = 1
    while True:
        for step in (ten, 2 * ten, 5 * ten):
            if step * size >= room:
                return step
        ten *= 10


def bars(grid: Grid) -> list[Shape]:
    """The size of each client, with its number."""
    left, full, inset = grid.right + GAP, SIZES - 46, grid.high // 5
    found: list[Shape] = []
    for row, size in enumerate(grid.rows.sizes.tolist()):
        y, thick = TOP + row * grid.high + inset, grid.high - 2 * inset
        long = full * size / grid.rows.sizes.max()
        found.append(Box(left, y, long, thick, BAR, grid.rows.told_size(row)))
        found.append(Text(left + long + 5, y + thick / 2, number(size), 10, "start", DIM))
    return [*found, Text(left + full / 2, grid.bottom + 28, "samples")]


def curve(grid: Grid) -> list[Shape]:
    """The sizes of many clients, from the largest down."""
    left, most = grid.right + GAP, int(grid.rows.sizes.max())
    found: list[Shape] = []
    before = float(SIZES)
    for row, size in enumerate(grid.rows.sizes.tolist()):
        y, said = TOP + row * grid.high, grid.rows.told_size(row)
        long = SIZES * size / most
        found.append(Box(left, y, long, grid.high, PALE, said))
        found.append(Box(left + long - 2, y, max(before - long, 0) + 2, 2, EDGE, said))
        found.append(Box(left + long - 2, y, 2, grid.high, EDGE, said))
        before = long
    return [
        *found,
        Text(left, grid.bottom + 11, "0", 10, "start", DIM),
        Text(left + SIZES, grid.bottom + 11, number(most), 10, "end", DIM),
        Text(left + SIZES / 2, grid.bottom + 28, "samples, largest first"),
    ]


def legend(grid: Grid) -> list[Shape]:
    """What colors and areas mean."""
    y = grid.bottom + 52
    found: list[Shape] = []
    for place, share in enumerate(LEGEND):
        x = LEFT + 34 * place
        found += [Box(x, y, 34, 10, shade(share)), Text(x + 17, y + 18, f"{100 * share:g} %", 9, color=DIM)]
    said = "share of a client's samples"
    if grid.rows.bubbles:
        said += f"; area: samples, largest {number(grid.rows.counts.max())}"
    return [*found, Text(LEFT + 34 * len(LEGEND) + 10, y + 5, said, 10, "start", DIM)]
