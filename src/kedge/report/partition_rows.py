"""The rows of a picture of who holds what: a client each, or groups of like ones where there are many."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kedge.measure.heterogeneity import Counts, Floats
from kedge.report.partition import Deal, number

FEW = 40  # clients in the order of their numbers, and classes as bubbles, up to here
ROWS = 240  # more rows cannot be told apart
CELLS = 24_000  # more make a page slow


@dataclass(frozen=True, eq=False)
class Rows:
    """What is drawn in each row; means over the row's clients."""

    members: list[NDArray[np.int64]]
    counts: Floats  # [rows, classes]
    shares: Floats  # [rows, classes]
    sizes: Floats  # [rows, 3]: smallest, mean, largest
    bubbles: bool
    ordered: bool  # by number, not by largest class

    @property
    def grouped(self) -> bool:
        """Whether a row may stand for several clients."""
        return any(len(own) > 1 for own in self.members)

    def label(self, row: int) -> str:
        """Whose row it is."""
        own = self.members[row]
        if len(own) == 1:
            return f"client {own[0]}"
        first = ", ".join(str(client) for client in own[:3].tolist())
        return f"{len(own)} clients ({first}{', …' if len(own) > 3 else ''})"


def rows_of(deal: Deal) -> Rows:
    """Few clients by number; many by their largest class, and within it from the purest client down."""
    few = deal.clients <= FEW
    order = np.arange(deal.clients)
    if not few:
        order = np.lexsort((-deal.shares.max(axis=1), deal.largest))
    count = min(deal.clients, max(FEW, min(ROWS, CELLS // deal.classes)))
    members = np.array_split(order, count)
    return Rows(
        members,
        means(deal.counts, members),
        means(deal.shares, members),
        np.array([(s.min(), s.mean(), s.max()) for s in (deal.sizes[own] for own in members)]),
        bubbles=few and deal.classes <= FEW,
        ordered=few,
    )


def means(values: Counts | Floats, members: list[NDArray[np.int64]]) -> Floats:
    """The mean over each row's clients."""
    return np.array([values[own].mean(axis=0) for own in members])


def told(rows: Rows, row: int, label: int) -> str:
    """What a cell says when pointed at."""
    count, share = rows.counts[row, label], rows.shares[row, label]
    mean = " on average" if len(rows.members[row]) > 1 else ""
    return f"{rows.label(row)}, class {label}: {number(count)} samples, {100 * share:.1f} %{mean}"


def told_size(rows: Rows, row: int) -> str:
    """What a row's bar says when pointed at."""
    least, mean, largest = rows.sizes[row]
    if len(rows.members[row]) == 1:
        return f"{rows.label(row)}: {number(mean)} samples"
    return f"{rows.label(row)}: {number(least)} to {number(largest)} samples, {number(mean)} on average"
