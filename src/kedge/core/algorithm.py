"""Algorithm and Stage: a method as a value that prints, compares, hashes and pickles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from kedge.core.correction import Correction, Step, Weight
from kedge.core.errors import RequestError
from kedge.core.losses import cross_entropy
from kedge.core.model import Model, Output
from kedge.core.optimizers import SGD, Optimizer
from kedge.core.ranges import Count, WholeNumber, checked
from kedge.core.schedules import FixLast, OnlyLast, Schedule, all_units, over
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


def no_heads(model: Model, leaves: Leaves) -> Leaves:
    """No added heads."""
    return {}


def as_it_is(module: nn.Module) -> nn.Module:
    """The network as it is."""
    return module


def logits(out: Output) -> Tensor:
    """The model's own logits."""
    return out.logits


@checked(prefix="")
@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in a round."""

    epochs: Count = 1
    batch: Count = 50
    optimizer: Optimizer = SGD()
    # The global norm; gradients are scaled by exactly min(1, clip/‖g‖), before weight decay.
    clip: Annotated[float, Field(gt=0, description="leave it out for no clipping")] | None = None
    drop_last: bool = False


DEFAULT_LOCAL = LocalTraining()


@checked(prefix="tune.")
@dataclass(frozen=True)
class Tune:
    """Personalise a copy of the model on a client's own data, to be measured and discarded."""

    epochs: Count = 5
    what: Literal["all", "head", "body"] = "all"  # the head is the last unit


@dataclass(frozen=True)
class Algorithm:
    """What a federated method is, axis by axis."""

    name: str
    corrections: tuple[Correction, ...] = ()  # objective terms, gradient corrections, server rules
    loss: Callable[[Step], Tensor] = cross_entropy  # the data term
    schedule: Schedule = all_units  # what trains when
    shared: Selection = everything  # what leaves the client
    rebuild: Callable[[nn.Module], nn.Module] = as_it_is  # another network; stages must agree on it
    adapt: Callable[[Model], Model] = unchanged  # the same network with added heads
    heads: tuple[str, ...] = ()  # the leaves that `adapt` adds
    headed: Callable[[Model, Leaves], Leaves] = (
        no_heads  # their start, where a stage begins with a trained model
    )
    weight: Weight = by_size  # in the mean of deltas
    predict: Callable[[Output], Tensor] = logits  # the logits a client uses
    head_trains: bool = False  # whether a schedule that never opens the last unit contradicts the method
    tune: Tune | None = None  # the method's own way to personalise; any other may be asked for

    def __post_init__(self) -> None:
        slots = [c.name for c in self.corrections]
        if len(set(slots)) < len(slots):
            raise RequestError(
                f"{self.name}: two corrections share a slot: {slots}. A slot has the state of one "
                "correction, so leave out one of the two."
            )

    def __and__(self, other: "Algorithm") -> "Algorithm":
        """This algorithm with the corrections of `other` after its own, as in "feddyn & feddecorr"."""
        check_addable(self, other)
        return replace(
            self,
            name=f"{self.name}&{other.name}",
            corrections=(*self.corrections, *other.corrections),
            adapt=adapt_all(adapt_parts(self.adapt) + adapt_parts(other.adapt)),
        )

    @property
    def needs_class_means(self) -> bool:
        """Whether clients look at all their data once more at the end of a round."""
        return any(c.needs_class_means for c in self.corrections)


@dataclass(frozen=True)
class AdaptAll:
    """Functions that adapt the model one after another."""

    parts: tuple[Callable[[Model], Model], ...]

    def __call__(self, model: Model) -> Model:
        for adapt in self.parts:
            model = adapt(model)
        return model


def adapt_parts(adapt: Callable[[Model], Model]) -> tuple[Callable[[Model], Model], ...]:
    """The single functions of `Algorithm.adapt`; none if it leaves the model unchanged."""
    if isinstance(adapt, AdaptAll):
        return adapt.parts
    return () if adapt is unchanged else (adapt,)


def adapt_all(parts: tuple[Callable[[Model], Model], ...]) -> Callable[[Model], Model]:
    """One function for `Algorithm.adapt` that applies each of these once."""
    once = tuple(dict.fromkeys(parts))
    return AdaptAll(once) if len(once) > 1 else next(iter(once), unchanged)


def check_addable(first: Algorithm, other: Algorithm) -> None:
    """Raise if `other` is more than its corrections and cannot be added to `first`."""
    title = f"{first.name} & {other.name}"
    if not other.corrections:
        raise RequestError(f"{title}: {other.name} has no corrections that could be added to {first.name}.")
    decided = own_axes(other)
    if decided:
        mine = own_axes(first)
        remedy = (
            f"{first.name} does so, too ({', '.join(mine)}): use one of the two."
            if mine
            else f"Write it first: {other.name} & {first.name}."
        )
        raise RequestError(
            f"{title}: only the first method may decide more than corrections, and {other.name} decides "
            f"{', '.join(decided)}. {remedy}"
        )


def own_axes(algorithm: Algorithm) -> list[str]:
    """The axes besides corrections on which an algorithm differs from FedAvg."""
    about = ("loss", "schedule", "shared", "rebuild", "heads", "predict", "tune")
    defaults = {field.name: field.default for field in fields(Algorithm)}
    return [name for name in about if getattr(algorithm, name) != defaults[name]]


@checked(prefix="")
@dataclass(frozen=True)
class Stage:
    """One method for some rounds; what an earlier stage leaves over by its criterion comes on top."""

    algorithm: Algorithm
    rounds: WholeNumber
    local: LocalTraining = DEFAULT_LOCAL  # in kedge.train, if left out: that of the call
    until: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None  # end early, on the stage's history

    def __post_init__(self) -> None:
        for correction in self.algorithm.corrections:
            correction.check(self.local)


def with_schedule(algorithm: Algorithm, schedule: Schedule, name: str) -> Algorithm:
    """The algorithm `name` under `schedule`; where it has its own, a unit trains if both open it."""
    return replace(algorithm, name=name, schedule=over(algorithm.schedule, schedule))


def fitted(algorithm: Algorithm, model: Model) -> Model:
    """The model as this method sees it: heads that other stages' methods added are not its own."""
    return replace(model, extra=tuple(k for k in model.extra if k in algorithm.heads))


def tuning(algorithm: Algorithm, tune: Tune) -> Algorithm:
    """Plain local training of a copy: the method's data term, none of its corrections."""
    schedule: dict[str, Schedule] = {"all": all_units, "head": OnlyLast(1), "body": FixLast(1)}
    heads = () if tune.what == "body" else algorithm.heads
    return replace(algorithm, corrections=(), schedule=schedule[tune.what], heads=heads)
