"""What is to be measured of a run beside its accuracies: the table [measure]. None of it changes the run."""

from dataclasses import dataclass

from kedge.core.errors import RequestError
from kedge.measure.features import Clusters


@dataclass(frozen=True)
class Measure:
    """Drift in every round, probes of all clients and of features now and then."""

    drift: bool = False  # diversity, cosines and norms of the updates; stores a model per client
    spread: bool = False  # FedDyn's C_t from the clients' gradients; stores two models per client
    probe_every: int = 0  # rounds from one look at all clients' updates to the next; 0: never
    features_every: int = 0  # rounds from one look at models' features to the next; 0: never
    components: int = 20  # features of a model: its K first components
    correlation: float = 0.5  # above it two features are the same
    quantile: float = 0.9  # of all entries; a sample above it has the feature
    samples: int = 10_000  # test samples that features are taken of, at most
    similarity_samples: int = 500  # of them for the similarity of units, which costs their square; 0: none

    def __post_init__(self) -> None:
        for key in ("probe_every", "features_every", "similarity_samples"):
            if getattr(self, key) < 0:
                raise RequestError(
                    f"measure.{key} = {getattr(self, key)}: need 0 (never) or a positive number."
                )
        if self.samples < 1:
            raise RequestError(f"measure.samples = {self.samples}: need at least 1.")
        if self.probe_every and not self.drift:
            raise RequestError(
                f"measure.probe_every = {self.probe_every}: the probe looks at the updates of all clients as "
                "measure.drift does at a round's. Set measure.drift = true as well."
            )
        try:
            _ = self.clusters
        except RequestError as error:
            raise RequestError(f"measure.{error}") from None

    @property
    def clusters(self) -> Clusters:
        """What counts as a feature."""
        return Clusters(self.components, self.correlation, self.quantile)

    def probes(self, round: int) -> bool:
        """Whether all clients are looked at in this round, counted from 1."""
        return bool(self.probe_every) and round % self.probe_every == 0

    def looks(self, round: int) -> bool:
        """Whether features are looked at in this round, counted from 1."""
        return bool(self.features_every) and round % self.features_every == 0
