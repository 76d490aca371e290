"""Algorithm and Stage: a federated method as a value that can be printed, compared, hashed and pickled."""

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
from kedge.core.schedules import FixLast, OnlyLast, Schedule, all_units, combined
from kedge.core.selections import Selection, everything
from kedge.core.tree import Leaves


def by_size(facts: Leaves) -> Tensor:
    """The client's number of samples, n_i."""
    return facts["examples"]


def equal(facts: Leaves) -> Tensor:
    """The same weight for every client."""
    return facts["examples"] * 0 + 1


def unchanged(model: Model) -> Model:
    """The same model."""
    return model


def no_heads(model: Model, leaves: Leaves) -> Leaves:
    """No added heads."""
    return {}


def as_it_is(module: nn.Module) -> nn.Module:
    """The same network."""
    return module


def logits(out: Output) -> Tensor:
    """The model's own logits."""
    return out.logits


@checked(prefix="")
@dataclass(frozen=True)
class LocalTraining:
    """Settings of a client's training in a round."""

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
    """Settings of fine-tuning: clients train a copy of the model on their data; it is evaluated, not kept."""

    epochs: Count = 5
    what: Literal["all", "head", "body"] = "all"  # the head is the last unit


@dataclass(frozen=True)
class Algorithm:
    """A federated method; every field has the value of FedAvg as its default."""

    name: str
    corrections: tuple[Correction, ...] = ()  # terms of the loss, corrections of gradients, server rules
    loss: Callable[[Step], Tensor] = cross_entropy  # the loss, without the terms of corrections
    schedule: Schedule = all_units  # which units train, and when
    shared: Selection = everything  # the leaves that clients send and the server averages
    rebuild: Callable[[nn.Module], nn.Module] = as_it_is  # replaces the network; the same in all stages
    adapt: Callable[[Model], Model] = unchanged  # adds heads to the network
    heads: tuple[str, ...] = ()  # the leaves that `adapt` adds
    headed: Callable[[Model, Leaves], Leaves] = no_heads  # (model, trained leaves) -> initial added heads
    weight: Weight = by_size  # clients' weights in the mean of deltas
    predict: Callable[[Output], Tensor] = logits  # the logits of a client's own model
    head_trains: bool = False  # if true, a schedule that never trains the last unit is an error
    tune: Tune | None = None  # the method's own fine-tuning; a run may request another

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
        """Whether clients compute class means over all their data at the end of a round."""
        return any(c.needs_class_means for c in self.corrections)


@dataclass(frozen=True)
class AdaptAll:
    """An `Algorithm.adapt` that applies several functions one after another."""

    parts: tuple[Callable[[Model], Model], ...]

    def __call__(self, model: Model) -> Model:
        for adapt in self.parts:
            model = adapt(model)
        return model


def adapt_parts(adapt: Callable[[Model], Model]) -> tuple[Callable[[Model], Model], ...]:
    """The functions that `adapt` applies one after another; empty if `adapt` is `unchanged`."""
    if isinstance(adapt, AdaptAll):
        return adapt.parts
    return () if adapt is unchanged else (adapt,)


def adapt_all(parts: tuple[Callable[[Model], Model], ...]) -> Callable[[Model], Model]:
    """A function for `Algorithm.adapt` that applies `parts` from left to right, without duplicates."""
    distinct = tuple(dict.fromkeys(parts))
    return AdaptAll(distinct) if len(distinct) > 1 else next(iter(distinct), unchanged)


def check_addable(first: Algorithm, other: Algorithm) -> None:
    """Raise a RequestError if `other` differs from FedAvg by anything but corrections, or has none."""
    title = f"{first.name} & {other.name}"
    if not other.corrections:
        raise RequestError(f"{title}: {other.name} has no corrections that could be added to {first.name}.")
    decided = decisions(other)
    if decided:
        decided_by_first = decisions(first)
        remedy = (
            f"{first.name} does so, too ({', '.join(decided_by_first)}): use one of the two."
            if decided_by_first
            else f"Write it first: {other.name} & {first.name}."
        )
        raise RequestError(
            f"{title}: only the first method may decide more than corrections, and {other.name} decides "
            f"{', '.join(decided)}. {remedy}"
        )


def decisions(algorithm: Algorithm) -> list[str]:
    """The fields besides `corrections` in which an algorithm differs from FedAvg."""
    compared = ("loss", "schedule", "shared", "rebuild", "heads", "predict", "tune")
    defaults = {field.name: field.default for field in fields(Algorithm)}
    return [name for name in compared if getattr(algorithm, name) != defaults[name]]


@checked(prefix="")
@dataclass(frozen=True)
class Stage:
    """One method for `rounds` rounds, plus the rounds that are left if earlier stages ended early."""

    algorithm: Algorithm
    rounds: WholeNumber
    local: LocalTraining = DEFAULT_LOCAL  # kedge.train replaces this default by the settings of its call
    # The stage's history -> whether the stage ends now, before its last round.
    until: Callable[[Sequence[Mapping[str, Any]]], bool] | None = None

    def __post_init__(self) -> None:
        for correction in self.algorithm.corrections:
            correction.check(self.local)


def with_schedule(algorithm: Algorithm, schedule: Schedule, name: str) -> Algorithm:
    """The algorithm, renamed, with both schedules: a unit trains in the steps in which both open it."""
    return replace(algorithm, name=name, schedule=combined(algorithm.schedule, schedule))


def model_for(algorithm: Algorithm, model: Model) -> Model:
    """The model with the added heads of `algorithm` only, without those of other stages' methods."""
    return replace(model, extra=tuple(k for k in model.extra if k in algorithm.heads))


def tuning_algorithm(algorithm: Algorithm, tune: Tune) -> Algorithm:
    """The algorithm that fine-tunes a client's copy: the method's loss without its corrections."""
    schedule: dict[str, Schedule] = {"all": all_units, "head": OnlyLast(1), "body": FixLast(1)}
    heads = () if tune.what == "body" else algorithm.heads
    return replace(algorithm, corrections=(), schedule=schedule[tune.what], heads=heads)
