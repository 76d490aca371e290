"""Check that a network has features, the input of its last linear layer, for methods that use them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kedge.core.errors import RequestError
from kedge.core.model import Model


def require_features(layers: Sequence[str], method: str, network: str = "the model") -> None:
    """Raise a RequestError if `layers`, the names of the linear layers of `network`, is empty."""
    if not layers:
        raise RequestError(
            f"{method} needs features: {network} has no linear layer, whose input they would be."
        )


@dataclass(frozen=True)
class NeedsFeatures:
    """An `Algorithm.adapt` that returns the model unchanged, or raises if the model has no features."""

    method: str

    def __call__(self, model: Model) -> Model:
        require_features(model.classifier, self.method)
        return model
