"""Algorithm and Stage: a method as a value that prints, compares, hashes and pickles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kedge.core.correction import Correction, Step, Weight
from kedge.core.errors import RequestError
from kedge.core.losses import cross_entropy
from kedge.core.model import Model, Output
from kedge.core.optimizers import SGD, Optimizer
from kedge.core.schedules import Schedule, all_units
from kedge.core.selections import Selection, everything
from kedge.core.tree import Leaves


def by_size(facts: Leaves) -> Tensor:
    """Weight n_i."""
    return facts["examples"]


def equal(facts: Leaves) -> Tensor:
    """The same weight for every client."""
    return facts["examples"] * 0 + 1


def unchanged(model: Model) -> Model:
    """The model as it is."""
    return model


def logits(out: Output) -> Tensor:
    """The model's own logits."""
    return out.logits


@dataclass(frozen=True)
class Local:
    """How a client trains in a round."""

    epochs: int = 1
    batch: int = 50
    optimizer: Optimizer = SGD()
    clip: float | None = None  # global norm, exact min(1, clip/‖g‖), before weight decay
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} = {getattr(self, name)}: need a whole number of at least 1.")
        if self.clip is not None and not self.clip > 0:
            raise RequestError(f"clip = {self.clip}: need a positive norm; leave it out for no clipping.")


@dataclass(frozen=True)
class Algorithm:
    """What a federated method is, axis by axis."""

    name: str
    corrections: tuple[Correction, ...] = ()  # objective terms, gradient corrections, server rules
    loss: Callable[[Step], Tensor] = cross_entropy  # the data term
    schedule: Schedule = all_units  # what trains when
    shared: Selection = everything  # what leaves the client
    adapt: Callable[[Model], Model] = unchanged  # extra heads, or another head
    weight: Weight = by_size  # in the mean of deltas
    predict: Callable[[Output], Tensor] = logits  # the logits a client uses

    def __post_init__(self) -> None:
        slots = [c.name for c in self.corrections]
        if len(set(slots)) < len(slots):
            raise RequestError(f"{self.name}: two corrections share a slot: {slots}.")


@dataclass(frozen=True)
class Stage:
    """One method for some rounds."""

    algorithm: Algorithm
    rounds: int
    local: Local = Local()
    until: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None  # end early, on the stage's history

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise RequestError(f"rounds = {self.rounds}: need a whole number of at least 1.")
        for correction in self.algorithm.corrections:
            correction.check(self.local)
