"""Correction: the base class for methods against client drift, and the values that its hooks receive.

A correction receives shared leaves only, and its state on clients, on the server and in uploads is stored
under its own slot. Therefore any two corrections can be combined. Every hook is a pure function; a subclass
overrides the hooks that it needs.
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
    """The argument of losses and of hooks that run in every step: the values of one client at one step."""

    params: Leaves  # the client's shared leaves
    anchor: Leaves  # the shared leaves as the server sent them
    batch: Batch
    out: Output  # the output of the client's model for `batch`
    at: Callable[[Leaves], Output]  # leaves -> the output with these leaves, in evaluation mode, detached
    state: Tree  # the correction's memory on this client
    broadcast: Tree  # the correction's tensors from the server
    facts: Leaves  # constants of the client: number of samples, relative size, samples of each class
    round: Tensor  # number of the round, from 0; 0-d, so that one compiled program serves all rounds
    trainable: tuple[str, ...] = ()  # the leaves that train in this step


class ClassMeans(NamedTuple):
    """Features of a client's final model, averaged over its training samples of each class."""

    mean: Tensor  # [classes, d], in evaluation mode; 0 for a class without samples
    samples: Tensor  # [classes], the number of samples


@dataclass(frozen=True)
class End:
    """The argument of `finish` and `send`: the values of one client after the last step of a round.

    Fields without a comment are as in `Step`.
    """

    params: Leaves
    anchor: Leaves
    delta: Leaves  # params − anchor
    lr: Tensor  # the learning rate of the round
    steps: Tensor  # the number of the client's steps
    # For each leaf, the distance that a constant gradient of 1 would have moved it: the sum of `lr` over the
    # steps in which the leaf trained; more with momentum.
    lr_time: Leaves
    state: Tree
    broadcast: Tree
    facts: Leaves
    class_means: ClassMeans | None = None  # if a correction of the algorithm has `needs_class_means`


class Cohort(NamedTuple):
    """The server's view of a round."""

    round: int
    size: float  # number of admitted uploads; in a private run the expected number of participants
    population: int  # number of all clients
    shared: Leaves  # the shared leaves before the update


class Correction:
    """Base class of all corrections; each hook has a neutral default."""

    name: ClassVar[str]  # the slot
    weight: ClassVar[Weight | None] = None  # clients' weights in the mean of its uploads; None: algorithm's
    needs_class_means: ClassVar[bool] = False  # if true, clients compute `End.class_means`
    rests: ClassVar[bool] = True  # if true, a leaf that trained on no client keeps its server state

    def check(self, local: "LocalTraining") -> None:
        """Raise a RequestError if the correction does not work with these settings of local training."""

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
        """The tensors that the server sends to the clients beside the model."""
        return {}

    def loss(self, step: Step) -> Tensor | float:
        """A term that is added to the client's loss."""
        return 0.0

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        """The gradient that replaces `grads`, of the trainable shared leaves, before clipping."""
        return grads

    def unclipped_gradient(self, step: Step) -> Leaves:
        """A gradient that is added after clipping, together with weight decay."""
        return {}

    def advance(self, step: Step) -> Tree:
        """The client's memory after a step."""
        return step.state

    def finish(self, end: End) -> tuple[Tree, Tree]:
        """The client's memory after the round, and its upload; the server sees only the mean of uploads."""
        return end.state, {}

    def send(self, delta: Leaves, end: End) -> Leaves:
        """The delta that the client uploads in place of `delta`."""
        return delta

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        """The update that replaces `update`, and the new server state; `mean` is the clients' mean upload."""
        return update, state

    def views(self, shared: Leaves, state: Tree) -> dict[str, Leaves]:
        """Further models to evaluate, by name."""
        return {}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """Numbers of the server's state for the history, by name."""
        return {}

    def drift(self, state: Tree, facts: Leaves) -> Leaves:
        """The method's own estimate of a client's drift, from its memory: FedDyn's g_i, SCAFFOLD's c_i."""
        return {}


def reached_leaves(correction: Correction, model: Model, shared: Leaves, unshared: Leaves) -> Leaves:
    """The leaves that a correction has state for; they may include personal and frozen leaves."""
    reach = correction.reach(model)
    return shared if reach is None else only({**model.frozen, **unshared, **shared}, reach)
