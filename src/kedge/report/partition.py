"""A dataset dealt out, as plain numbers: who holds which classes, how many, how different."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.measure.heterogeneity import Counts, Floats, Heterogeneity, distances, heterogeneity

QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "max": 1.0}


@dataclass(frozen=True, eq=False)
class Deal:
    """What every client holds; training samples, unless said otherwise."""

    dataset: str
    partition: str  # name(arguments)
    seed: int
    counts: Counts  # [clients, classes]
    tests: Counts  # [clients], samples held out as local test
    left: int = 0  # samples of the dataset that nobody got

    @property
    def clients(self) -> int:
        """How many clients."""
        return len(self.counts)

    @property
    def classes(self) -> int:
        """How many classes."""
        return int(self.counts.shape[1])

    @cached_property
    def sizes(self) -> Counts:
        """Samples of each client."""
        return np.asarray(self.counts.sum(axis=1))

    @cached_property
    def held(self) -> Counts:
        """Classes each client holds."""
        return np.asarray((self.counts > 0).sum(axis=1))

    @cached_property
    def shares(self) -> Floats:
        """The classes' shares of each client's samples, [clients, classes]."""
        return np.asarray(self.counts / np.maximum(self.sizes, 1)[:, None])

    @cached_property
    def largest(self) -> Counts:
        """Each client's largest class."""
        return np.asarray(self.counts.argmax(axis=1))

    @cached_property
    def distances(self) -> Floats:
        """How far each client's classes are from the whole's."""
        return distances(self.counts)

    @cached_property
    def heterogeneity(self) -> Heterogeneity:
        """How much clients differ."""
        return heterogeneity(self.counts)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """What is told of a client, one value a client."""
        return {
            "samples": self.sizes,
            "classes": self.held,
            "largest_class": self.largest,
            "largest_share": self.shares.max(axis=1),
            "distance": self.distances,
            "local_test": self.tests,
        }

    def summary(self, column: str) -> dict[str, float]:
        """Smallest, middle and largest value of a column, and the quarters between."""
        values = np.quantile(self.columns[column], list(QUANTILES.values()))
        return dict(zip(QUANTILES, values.tolist(), strict=True))


def document(deal: Deal) -> dict[str, Any]:
    """The deal as JSON has it; the number is `heterogeneity.value`."""
    columns = {name: values.tolist() for name, values in deal.columns.items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return {
        "dataset": deal.dataset,
        "partition": deal.partition,
        "seed": deal.seed,
        "clients": deal.clients,
        "classes": deal.classes,
        "samples": {
            "training": int(deal.sizes.sum()),
            "local_test": int(deal.tests.sum()),
            "to_nobody": deal.left,
        },
        "heterogeneity": deal.heterogeneity._asdict(),
        "summary": {name: deal.summary(name) for name in columns if name != "largest_class"},
        "rows": [
            {"client": number, **row, "counts": counts}
            for number, (row, counts) in enumerate(zip(rows, deal.counts.tolist(), strict=True))
        ],
    }


def number(value: float) -> str:
    """A count for reading; a middle of two whole numbers may be a half."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def counted(value: int, word: str) -> str:
    """A count with its noun."""
    return f"{value:,} {word if value == 1 else word + ('es' if word.endswith('s') else 's')}"


def rounded(value: float, digits: int = 2) -> str:
    """The number for reading, never as -0.00."""
    return f"{round(value, digits) + 0.0:.{digits}f}"
