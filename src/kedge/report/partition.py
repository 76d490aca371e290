"""Statistics of a partition: samples and classes per client, and label heterogeneity."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.measure.heterogeneity import Counts, Floats, Heterogeneity, distances, heterogeneity

QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "max": 1.0}


@dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """The class counts of every client, and statistics of them; they count training samples."""

    dataset: str
    partition: str  # name(arguments)
    seed: int
    counts: Counts  # [clients, classes]
    tests: Counts  # [clients], samples of the local test
    unassigned: int = 0  # samples of the dataset that no client has

    @property
    def name(self) -> str:
        """Dataset and partition."""
        return f"{self.dataset}, {self.partition}"

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.counts)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.counts.shape[1])

    @cached_property
    def sizes(self) -> Counts:
        """Samples of each client, [clients]."""
        return np.asarray(self.counts.sum(axis=1))

    @cached_property
    def shares(self) -> Floats:
        """Fraction of each class among a client's samples, [clients, classes]."""
        return np.asarray(self.counts / np.maximum(self.sizes, 1)[:, None])

    @cached_property
    def largest(self) -> Counts:
        """Each client's largest class, [clients]."""
        return np.asarray(self.counts.argmax(axis=1))

    @cached_property
    def heterogeneity(self) -> Heterogeneity:
        """Label heterogeneity of the partition."""
        return heterogeneity(self.counts)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The statistics of each client by name, [clients] each."""
        return {
            "samples": self.sizes,
            "classes": np.asarray((self.counts > 0).sum(axis=1)),
            "largest_class": self.largest,
            "largest_share": self.shares.max(axis=1),
            "distance": distances(self.counts),
            "local_test": self.tests,
        }

    def quantiles(self, column: str) -> dict[str, float]:
        """Minimum, quartiles and maximum of a column."""
        values = np.quantile(self.columns[column], list(QUANTILES.values()))
        return dict(zip(QUANTILES, values.tolist(), strict=True))


def document(partition: PartitionStatistics) -> dict[str, Any]:
    """All statistics as plain values for JSON."""
    columns = {name: values.tolist() for name, values in partition.columns.items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return {
        "dataset": partition.dataset,
        "partition": partition.partition,
        "seed": partition.seed,
        "clients": partition.clients,
        "classes": partition.classes,
        "samples": {
            "training": int(partition.sizes.sum()),
            "local_test": int(partition.tests.sum()),
            "to_nobody": partition.unassigned,
        },
        "heterogeneity": partition.heterogeneity._asdict(),
        "summary": {name: partition.quantiles(name) for name in columns if name != "largest_class"},
        "rows": [
            {"client": number, **row, "counts": counts}
            for number, (row, counts) in enumerate(zip(rows, partition.counts.tolist(), strict=True))
        ],
    }
