"""What methods about features ask of a network: a linear layer that takes them in."""

from dataclasses import dataclass

from kedge.core.errors import RequestError
from kedge.core.model import Model


@dataclass(frozen=True)
class NeedsFeatures:
    """The model as it is, if it has features; else an error in the method's name."""

    method: str

    def __call__(self, model: Model) -> Model:
        if not model.classifier:
            raise RequestError(
                f"{self.method} needs features: the model has no linear layer that takes any in."
            )
        return model
