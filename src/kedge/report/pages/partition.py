"""A partition as an HTML page: the figure of plots/partition.py with a caption for every bubble and bar."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kedge.report.numbers import plural, with_commas
from kedge.report.pages.template import render
from kedge.report.partition import PartitionStatistics
from kedge.report.partition_rows import Rows, heading, shown_rows, subheading
from kedge.report.plots.colors import DIM, INK, LINE, shade

SWATCHES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # of the legend
WIDTH, HEIGHT = 600, 520  # pixels of the cells, if there are not too few or too many
SIZES = 65  # percent of their column that bars of sizes with numbers fill


def page(partition: PartitionStatistics, lines: Sequence[str]) -> str:
    """The page: the figure, and `lines` as paragraphs below it."""
    rows = shown_rows(partition)
    count, classes = rows.counts.shape
    wide = between(16 if rows.bubbles else 1, WIDTH // classes, 56)
    high = between(16, HEIGHT // count, 40) if rows.bubbles else between(2, HEIGHT // count, 24)
    return render(
        "partition.html",
        name=heading(partition), subheading=subheading(partition), lines=lines, rows=rows, classes=classes,
        wide=wide, high=high, width=wide * classes, height=high * count,
        cells=list(cells(rows, 0.47 * min(wide, high))), totals=list(totals(partition)),
        sizes=list(sizes(rows, high)), largest=with_commas(rows.sizes.max()),
        row_labels=list(row_labels(rows, high)), column_labels=list(column_labels(classes, wide)),
        swatches=[{"color": shade(share), "text": f"{100 * share:g} %"} for share in SWATCHES],
        ink=INK, dim=DIM, line=LINE,
    )  # fmt: skip


def between(low: int, value: int, high: int) -> int:
    """`value` clamped to [low, high]."""
    return max(low, min(value, high))


def cells(rows: Rows, largest: float) -> Iterator[dict[str, Any]]:
    """Color and caption of every class that a client has; radius of its bubble, at most `largest` pixels."""
    radii = np.maximum(largest * np.sqrt(rows.counts / rows.counts.max()), 1.2)
    for row, column in np.argwhere(rows.counts > 0).tolist():
        yield {
            "row": row, "column": column, "radius": round(float(radii[row, column]), 2),
            "color": shade(rows.shares[row, column]), "caption": rows.cell_caption(row, column),
        }  # fmt: skip


def totals(partition: PartitionStatistics) -> Iterator[dict[str, Any]]:
    """The bars of the samples of each class."""
    counts = partition.counts.sum(axis=0)
    for label, count in enumerate(counts.tolist()):
        share = f"{100 * count / counts.sum():.1f} %"
        yield {
            "percent": f"{100 * count / counts.max():.4g}",
            "caption": f"class {label}: {plural(count, 'sample')} of all clients, {share}",
        }


def sizes(rows: Rows, high: int) -> Iterator[dict[str, Any]]:
    """The bars of the clients' sizes, one for each row of `high` pixels."""
    inset = high // 5 if rows.few else 0
    longest = SIZES if rows.few else 100  # percent
    for row, size in enumerate(rows.sizes.tolist()):
        yield {
            "top": row * high + inset, "height": high - 2 * inset, "text": with_commas(size),
            "percent": f"{longest * size / rows.sizes.max():.4g}", "caption": rows.size_caption(row),
        }  # fmt: skip


def row_labels(rows: Rows, high: int) -> Iterator[dict[str, Any]]:
    """The labels of rows: client numbers, or for many clients the number of clients above the label."""
    count, population = len(rows.clients), rows.population
    if rows.few:
        for row in range(0, count, label_step(high, 13)):
            yield {"percent": f"{100 * (row + 0.5) / count:.4g}", "text": row}
        return
    for above in range(0, population + 1, label_step(high * count / population, 40)):
        yield {"percent": f"{100 * above / population:.4g}", "text": with_commas(above)}


def column_labels(classes: int, wide: int) -> Iterator[dict[str, Any]]:
    """The labels of columns: class numbers, at a distance at which they do not overlap."""
    for label in range(0, classes, label_step(wide, 7 * len(str(classes - 1)) + 6)):
        yield {"percent": f"{100 * (label + 0.5) / classes:.4g}", "text": label}


def label_step(size: float, room: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, … whose multiples of `size` pixels leave `room` pixels for a label."""
    power = 10 ** int(math.log10(max(room / size, 1)))
    return int(next(step for step in (power, 2 * power, 5 * power, 10 * power) if step * size >= room))
