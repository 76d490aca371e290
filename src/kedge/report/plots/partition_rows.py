"""The rows of a picture of who holds what: every client, or an even choice of many."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kedge.measure.heterogeneity import Counts, Floats
from kedge.report.partition import Deal, counted

FEW = 40  # clients in the order of their numbers, and classes as bubbles, up to here
ROWS = 240  # more cannot be told apart
CELLS = 20_000  # more make a page slow


@dataclass(frozen=True, eq=False)
class Rows:
    """The clients drawn, from the top down."""

    clients: Counts  # [rows], their numbers
    counts: Counts  # [rows, classes]
    shares: Floats  # [rows, classes]
    sizes: Counts  # [rows]; of the same clients where they are few, else those of all from the largest down
    few: bool  # by number, not by largest class
    everyone: int  # how many clients there are

    @property
    def bubbles(self) -> bool:
        """Whether there is room for circles."""
        return self.few and self.counts.shape[1] <= FEW

    def told(self, row: int, label: int) -> str:
        """What a cell says when pointed at."""
        count, share = int(self.counts[row, label]), float(self.shares[row, label])
        return f"client {self.clients[row]}, class {label}: {counted(count, 'sample')}, {100 * share:.1f} %"

    def told_size(self, row: int) -> str:
        """What a row's bar says when pointed at."""
        size = counted(int(self.sizes[row]), "sample")
        if self.few:
            return f"client {self.clients[row]}: {size}"
        place = spread(self.everyone, len(self.clients))[row] + 1
        return f"{place:,} of {self.everyone:,} clients have at least {size}"


def rows_of(deal: Deal) -> Rows:
    """Few clients by number; many by their largest class, and within it from the purest client down."""
    few = deal.clients <= FEW
    order = np.arange(deal.clients) if few else np.lexsort((-deal.shares.max(axis=1), deal.largest))
    count = deal.clients if few else min(deal.clients, max(FEW, min(ROWS, CELLS // deal.classes)))
    places = spread(deal.clients, count)
    chosen = order[places]
    sizes = deal.sizes if few else np.sort(deal.sizes)[::-1][places]
    return Rows(chosen, deal.counts[chosen], deal.shares[chosen], sizes, few, deal.clients)


def spread(everyone: int, count: int) -> NDArray[np.int64]:
    """So many places among all, evenly, with the first and the last."""
    return np.linspace(0, everyone - 1, count).round().astype(np.int64)
