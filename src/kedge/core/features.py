"""The guard of methods that need features: the network must have a linear layer that takes them in."""

from collections.abc import Sequence
from dataclasses import dataclass

from kedge.core.errors import RequestError
from kedge.core.model import Model


def require_features(layers: Sequence[str], method: str, network: str = "the model") -> None:
    """Raise in the name of `method` if `layers`, the names of linear layers in `network`, is empty."""
    if not layers:
        raise RequestError(f"{method} needs features: {network} has no linear layer that takes any in.")


@dataclass(frozen=True)
class NeedsFeatures:
    """An `Algorithm.adapt` that returns the model unchanged, or raises if it has no features."""

    method: str

    def __call__(self, model: Model) -> Model:
        require_features(model.classifier, self.method)
        return model
