"""The table [measure] of a config: measurements besides evaluation. They never change training."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kedge.core.errors import RequestError
from kedge.core.ranges import Count, checked
from kedge.measure.features import Clusters, Threshold

Interval = Annotated[int, Field(ge=0, description="0 is never")]


@checked(prefix="measure.")
@dataclass(frozen=True)
class Measure:
    """The measurements of a run: drift in every round, probes of all clients and features at intervals."""

    drift: bool = False  # diversity, cosines and norms of updates; stores one model per client
    spread: bool = False  # FedDyn's C_t from clients' gradients; stores two models per client
    probe_every: Interval = 0  # rounds between two probes of all clients' updates; 0: never
    features_every: Interval = 0  # rounds between two measurements of features; 0: never
    components: Count = 20  # K: number of principal components taken as features of a model
    correlation: Threshold = 0.5  # above this correlation two features are the same
    quantile: Threshold = 0.9  # a sample has a feature if its entry is above this quantile of all entries
    samples: Count = 10_000  # maximum number of test samples used for features
    # Maximum number of these used for CKA of units; its cost is quadratic in this number.
    similarity_samples: Annotated[int, Field(ge=0, description="0 is no CKA")] = 500

    def __post_init__(self) -> None:
        if self.probe_every and not self.drift:
            raise RequestError(
                f"measure.probe_every = {self.probe_every}: the probe needs the measurement of updates that "
                "measure.drift adds. Set measure.drift = true as well."
            )

    @property
    def clusters(self) -> Clusters:
        """Thresholds that define features and clusters."""
        return Clusters(self.components, self.correlation, self.quantile)

    def probe_due(self, round: int) -> bool:
        """Whether all clients are probed in this round, counted from 1."""
        return bool(self.probe_every) and round % self.probe_every == 0

    def features_due(self, round: int) -> bool:
        """Whether features are measured in this round, counted from 1."""
        return bool(self.features_every) and round % self.features_every == 0
