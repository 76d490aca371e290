"""The rows of a figure of a partition: all clients, or a selection at equal distances, with captions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kedge.measure.heterogeneity import Counts, Floats
from kedge.report.numbers import fixed, plural, with_commas
from kedge.report.partition import PartitionStatistics

FEW = 40  # up to this number, clients are shown by number, and classes as bubbles
MAX_ROWS = 240  # more rows cannot be distinguished
MAX_CELLS = 20_000  # more cells make a page slow
MAX_NAME = 90  # characters of a heading


@dataclass(frozen=True, eq=False)
class Rows:
    """The clients shown, from top to bottom."""

    clients: Counts  # [rows], client numbers
    counts: Counts  # [rows, classes]
    shares: Floats  # [rows, classes]
    # [rows]: the sizes of `clients` if `few`, else of a selection of all clients from the largest down.
    sizes: Counts
    few: bool  # whether the partition has few clients: rows are ordered by number, not by largest class
    population: int  # number of clients in the partition

    @property
    def bubbles(self) -> bool:
        """Whether classes are shown as bubbles; otherwise as a heat map."""
        return self.few and self.counts.shape[1] <= FEW

    @property
    def axis(self) -> str:
        """The label of the client axis."""
        if self.few:
            return "client"
        shown = len(self.clients)
        part = f" ({shown} of {self.population:,} drawn)" if shown < self.population else ""
        return f"clients, by largest class{part}"

    @property
    def sizes_axis(self) -> str:
        """The label of the axis of sizes."""
        return "samples" if self.few else "samples, largest first"

    @property
    def legend(self) -> str:
        """The meaning of colors and areas."""
        area = f"; area: samples, largest {with_commas(self.counts.max())}" if self.bubbles else ""
        return f"share of a client's samples{area}"

    def cell_caption(self, row: int, label: int) -> str:
        """Samples and share of one class of one client."""
        count, share = int(self.counts[row, label]), float(self.shares[row, label])
        return f"client {self.clients[row]}, class {label}: {plural(count, 'sample')}, {100 * share:.1f} %"

    def size_caption(self, row: int) -> str:
        """The size shown in a row."""
        size = plural(int(self.sizes[row]), "sample")
        if self.few:
            return f"client {self.clients[row]}: {size}"
        rank = evenly_spaced(self.population, len(self.clients))[row] + 1
        return f"{rank:,} of {self.population:,} clients have at least {size}"


def shown_rows(partition: PartitionStatistics) -> Rows:
    """The rows to draw: few clients by number, many by largest class and decreasing share of it."""
    few = partition.clients <= FEW
    largest_share = partition.shares.max(axis=1)
    order = np.arange(partition.clients) if few else np.lexsort((-largest_share, partition.largest))
    limit = max(FEW, min(MAX_ROWS, MAX_CELLS // partition.classes))
    selected = evenly_spaced(partition.clients, min(partition.clients, limit))
    clients = order[selected]
    sizes = partition.sizes if few else np.sort(partition.sizes)[::-1][selected]
    return Rows(clients, partition.counts[clients], partition.shares[clients], sizes, few, partition.clients)


def evenly_spaced(population: int, count: int) -> NDArray[np.int64]:
    """`count` evenly spaced indices below `population`, including the first and the last."""
    return np.linspace(0, population - 1, count).round().astype(np.int64)


def heading(partition: PartitionStatistics) -> str:
    """The name of the partition; the middle of a long name, for example of a path, is left out."""
    name = partition.name
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME // 2]}…{name[1 - MAX_NAME // 2 :]}"


def subheading(partition: PartitionStatistics) -> str:
    """The number of clients and the heterogeneity."""
    value = fixed(partition.heterogeneity.value)
    return (
        f"{plural(partition.clients, 'client')} · heterogeneity {value} (0: random, 1: one class per client)"
    )
