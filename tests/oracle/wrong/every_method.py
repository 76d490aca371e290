"""Wrong methods, each caught by a property of every method."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kedge.algorithms import fedavg, fedbug, fedprox, scaffold
from kedge.algorithms.fedprox import Proximal
from kedge.algorithms.layer_expansion import Thaw
from kedge.audit.registry.every_method import PROPERTIES
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.losses import weighted_mean
from kedge.core.schedules import FixLast
from kedge.core.selections import body
from kedge.core.tree import Leaves, Tree, axpy, scale, sqnorm, sub, zeros

ROUNDS: list[int] = []
CALLS: list[int] = []
STARTS: list[int] = []


def having(*corrections: Correction, base: Algorithm | None = None) -> Algorithm:
    return replace(base or fedavg(), name="mine", corrections=corrections)


@dataclass(frozen=True)
class OnItself(Correction):
    """Momentum that is kept on the correction and not in the server's state."""

    kept: dict[str, Tensor] = field(default_factory=dict, hash=False)
    name = "momentum"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        self.kept.update(axpy(0.5, self.kept or zeros(update), update))
        return dict(self.kept), state


@dataclass(frozen=True)
class FirstUpdate(Correction):
    """Keeps the first update on itself, which a second run does not change."""

    kept: dict[str, Tensor] = field(default_factory=dict, hash=False)
    name = "first"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        self.kept.update({} if self.kept else update)
        return axpy(0.1, self.kept, update), state


@dataclass(frozen=True)
class InItsModule(Correction):
    """Steps that shrink with a global count of updates."""

    name = "shrinking"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        ROUNDS.append(cohort.round)
        return scale(1 / len(ROUNDS), update), state


@dataclass(frozen=True)
class ByRound(Correction):
    """The same steps, computed from the round that the server receives: right."""

    name = "shrinking"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return scale(1 / (cohort.round + 1), update), state


class Detached(Proximal):
    """A term with a value and without a gradient."""

    def loss(self, step: Step) -> Tensor:
        return self.mu / 2 * sqnorm(sub({k: v.detach() for k, v in step.params.items()}, step.anchor))


class OneLeaf(Proximal):
    """A term without the gradient of one small leaf."""

    def loss(self, step: Step) -> Tensor:
        held = {k: v.detach() if k == "0.bias" else v for k, v in step.params.items()}
        return self.mu / 2 * sqnorm(sub(held, step.anchor))


@dataclass(frozen=True)
class Distilled(Correction):
    """Distances to the outputs of two constant models, the sent and the present one: right."""

    name = "distilled"

    def loss(self, step: Step) -> Tensor:
        sent, now = (step.at(leaves).logits for leaves in (step.anchor, step.params))
        here = step.out.logits
        return weighted_mean((here - sent).square().sum(1) + (here - now / 2).square().sum(1), step.batch)


@dataclass(frozen=True)
class Remembering(Correction):
    """A distance to the client's last model, zeros before the first round: right."""

    name = "remembering"

    def init_client(self, shared: Leaves) -> Tree:
        return zeros(shared)

    def loss(self, step: Step) -> Tensor:
        return 0.1 * sqnorm(sub(step.params, dict(step.state)))

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return end.params, {}


class Shifted(Remembering):
    """A memory of closed leaves that changes and is not the model."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return scale(2.0, end.params), {}


@dataclass(frozen=True)
class Leaking(Correction):
    """A gradient of 0 for frozen leaves, so that weight decay changes them."""

    name = "leaking"

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        return {**zeros(step.params), **grads}


@dataclass(frozen=True)
class Unweighted(Correction):
    """A term over all rows of a batch, with padding."""

    name = "unweighted"

    def loss(self, step: Step) -> Tensor:
        return step.out.logits.square().mean()


@dataclass(frozen=True)
class GlobalRandom(Correction):
    """Noise from torch's own generator instead of a key."""

    name = "noise"

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        factor = float(torch.rand(()))
        return {k: factor * v for k, v in grads.items()}


@dataclass(frozen=True)
class CountingCalls(Correction):
    """An upload that depends on the number of calls of the hook in Python."""

    name = "counting"

    def finish(self, end: End) -> tuple[Tree, Tree]:
        CALLS.append(1)
        return end.state, {}

    def send(self, delta: Leaves, end: End) -> Leaves:
        return scale(1 / len(CALLS), delta)


@dataclass(frozen=True)
class SingleSample(Correction):
    """A standard deviation over a batch, which is not a number for one sample."""

    name = "deviation"

    def loss(self, step: Step) -> Tensor:
        return 0.01 * step.out.logits.std(0).sum()


@dataclass(frozen=True)
class SinglePrecision(Correction):
    """A memory that is always float32."""

    name = "single"

    def init_client(self, shared: Leaves) -> Tree:
        return {k: v.float() for k, v in zeros(shared).items()}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {k: v.float() for k, v in end.delta.items()}, {}


@dataclass(frozen=True)
class InPlace(Correction):
    """The server's rule halves the update in place."""

    name = "in-place"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        for v in update.values():
            v.mul_(0.5)
        return update, state


@dataclass(frozen=True)
class InPlaceShared(Correction):
    """The server's rule decays the distributed model in place."""

    name = "in-place-shared"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        for v in cohort.shared.values():
            v.mul_(0.99)
        return update, state


class StartsFromModel(Remembering):
    """A memory that starts with the current model, which differs between early and late clients."""

    def init_client(self, shared: Leaves) -> Tree:
        return dict(shared)


@dataclass(frozen=True)
class LooksAtSamples(Correction):
    """A term of the samples' size, which differs between images and a backbone's outputs."""

    name = "samples"

    def loss(self, step: Step) -> Tensor:
        return (
            0.001 * weighted_mean(step.batch.x.flatten(1).square().sum(1), step.batch) * sqnorm(step.params)
        )


@dataclass(frozen=True)
class ForgetsBetweenStages(Correction):
    """A server rule that depends on the number of calls of `init_server`; each stage calls it."""

    name = "stages"

    def init_server(self, shared: Leaves) -> Tree:
        STARTS.append(1)
        return {"factor": next(iter(shared.values())).new_tensor(1 / len(STARTS))}

    def broadcast(self, state: Tree) -> Tree:
        return state

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return scale(state["factor"], update), state


@dataclass(frozen=True, repr=False)
class Silent(Proximal):
    """A correction whose text does not show μ."""

    def __repr__(self) -> str:
        return "Silent()"


class WrongMethod(NamedTuple):
    """A wrong method, and properties of every method that must fail for it."""

    algorithm: Algorithm
    failing: Sequence[str]


ENGINES_AGREE = [one.name for one in PROPERTIES if one.name.startswith("engines agree")]
WRONG_METHODS: dict[str, WrongMethod] = {
    "momentum on itself": WrongMethod(having(OnItself()), ["stopped and resumed"]),
    "the first update on itself": WrongMethod(having(FirstUpdate()), ["stopped and resumed"]),
    "a count in its module": WrongMethod(
        having(InItsModule()), ["stopped and resumed", "two stages are one"]
    ),
    "detached": WrongMethod(having(Detached(0.3)), ["finite differences"]),
    "one leaf detached": WrongMethod(having(OneLeaf(0.01)), ["finite differences"]),
    "memory of closed leaves": WrongMethod(having(Shifted()), ["units never opened"]),
    "weight decay of frozen leaves": WrongMethod(
        having(Leaking()), ["units never opened", "layout of hooks"]
    ),
    "weight decay of closed leaves": WrongMethod(
        having(Leaking(), base=fedbug(fedavg(), 0.8)), ["units opened late"]
    ),
    "padding in a loss": WrongMethod(
        having(Unweighted()), [one for one in ENGINES_AGREE if "one sample" not in one]
    ),
    "torch's own generator": WrongMethod(having(GlobalRandom()), ["engines agree: dropout"]),
    "calls counted in Python": WrongMethod(
        having(CountingCalls()), ["chunks of the stack", "order of clients"]
    ),
    "no number for one sample": WrongMethod(
        having(SingleSample()), ["engines agree: one client, one sample"]
    ),
    "memory in float32": WrongMethod(having(SinglePrecision()), ["precision of the state"]),
    "update halved in place": WrongMethod(
        having(InPlace()), ["hooks modify nothing", "rounds modify nothing"]
    ),
    "model decayed in place": WrongMethod(
        having(InPlaceShared()),
        ["hooks modify nothing", "no unit opened", "units opened in the second round"],
    ),
    "memory starts with the model": WrongMethod(having(StartsFromModel()), ["memories start equal"]),
    "term of the raw samples": WrongMethod(having(LooksAtSamples()), ["frozen backbone"]),
    "starts counted in its module": WrongMethod(having(ForgetsBetweenStages()), ["two stages are one"]),
    "hidden hyper-parameter": WrongMethod(having(Silent(0.1)), ["pickle, hash, print"]),
    "loss is a closure": WrongMethod(
        replace(fedavg(), loss=lambda step: step.out.logits.sum()), ["pickle, hash, print"]
    ),
}


RIGHT_METHODS = {
    "steps by the round": having(ByRound()),
    "proximal": fedprox(0.3),
    "constants are held": having(Distilled()),
    "constants are held where a client keeps leaves": having(
        Distilled(), base=replace(fedavg(), shared=body)
    ),
    "its last model, first zeros": having(Remembering()),
    "control variates of the body": replace(scaffold(), shared=body),
    "the last unit closed": replace(fedavg(), schedule=FixLast(1)),
    "a unit that opens in round two": replace(fedavg(), schedule=Thaw((0, 2))),
}
