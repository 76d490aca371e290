"""Correction: one idea against drift, with its hooks.

A correction sees shared leaves only and has its own slot in memories, server state and messages, so any two
compose. Every hook is pure; override what the idea needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves, Tree, only

if TYPE_CHECKING:
    from kedge.core.algorithm import LocalTraining

Weight = Callable[[Leaves], Tensor]  # a client's facts -> its weight in a mean


@dataclass(frozen=True)
class Step:
    """What one client sees at one step."""

    params: Leaves  # the shared leaves, now
    anchor: Leaves  # the shared leaves as the server sent them
    batch: Batch
    out: Output  # the model on (all its leaves, batch)
    at: Callable[[Leaves], Output]  # the model with these leaves put in, in evaluation mode; a constant
    state: Tree  # this correction's memory here
    broadcast: Tree  # what the server sent for this correction
    facts: Leaves  # per-client constants
    round: Tensor  # number of the round, from 0: a tensor of no dimensions, so one program serves all rounds
    trainable: tuple[str, ...] = ()  # the leaves that move in this step


class ClassMeans(NamedTuple):
    """What a client's final model makes of its whole training set, class by class."""

    mean: Tensor  # [classes, d]: of the features, in evaluation mode; 0 for a class it does not hold
    samples: Tensor  # [classes]


@dataclass(frozen=True)
class End:
    """What one client sees after its last step."""

    params: Leaves
    anchor: Leaves
    delta: Leaves  # params − anchor, shared leaves only
    lr: Tensor
    steps: Tensor
    lr_time: (
        Leaves  # per leaf: how far a constant unit gradient would have moved it (Σ lr; with momentum more)
    )
    state: Tree
    broadcast: Tree
    facts: Leaves
    class_means: ClassMeans | None = None  # where a correction asks for it


class Cohort(NamedTuple):
    """What the server knows of the round."""

    round: int
    size: int  # admitted replies
    population: int
    shared: Leaves


class Correction:
    """Base of all corrections: every hook at its neutral value."""

    name: ClassVar[str]  # its slot in memories, server state and messages
    weight: ClassVar[Weight | None] = None  # its own uploads' weights, where they differ from the algorithm's
    needs_class_means: ClassVar[bool] = False  # a pass over every client's data at its end of a round
    rests: ClassVar[bool] = True  # its server state keeps the leaves that trained on nobody

    def check(self, local: "LocalTraining") -> None:
        """Raise RequestError where this correction and this way of training contradict each other."""

    def reach(self, model: Model) -> frozenset[str] | None:
        """The leaves that `init_client` and `init_server` receive, or None for the shared leaves."""
        return None

    def init_client(self, shared: Leaves) -> Tree:
        """A client's memory before its first round."""
        return {}

    def init_server(self, shared: Leaves) -> Tree:
        """The server's state before the first round."""
        return {}

    def broadcast(self, state: Tree) -> Tree:
        """What travels to the clients beside the model."""
        return {}

    def loss(self, step: Step) -> Tensor | float:
        """A term added to the local objective."""
        return 0.0

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        """The gradient of the trainable shared leaves, before the clip."""
        return grads

    def unclipped_gradient(self, step: Step) -> Leaves:
        """The part of the gradient that is added after clipping, together with weight decay."""
        return {}

    def advance(self, step: Step) -> Tree:
        """Memory that moves every step."""
        return step.state

    def finish(self, end: End) -> tuple[Tree, Tree]:
        """The memory kept, and the upload (it reaches the server only as a weighted mean)."""
        return end.state, {}

    def send(self, delta: Leaves, end: End) -> Leaves:
        """The delta as it leaves the client."""
        return delta

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        """The update of the shared leaves and the new server state."""
        return update, state

    def views(self, shared: Leaves, state: Tree) -> dict[str, Leaves]:
        """Other models worth evaluating, by name."""
        return {}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """Numbers of the server's state worth a place in the history, by name."""
        return {}

    def drift(self, state: Tree, facts: Leaves) -> Leaves:
        """A client's drift by its memory, as the method estimates it: FedDyn's g_i, SCAFFOLD's c_i."""
        return {}


def within(correction: Correction, model: Model, shared: Leaves, own: Leaves) -> Leaves:
    """The leaves that a correction has state for; `reach` may also name personal or frozen leaves."""
    reach = correction.reach(model)
    return shared if reach is None else only({**model.frozen, **own, **shared}, reach)
