"""Engine: the protocol of an object that trains the clients of a round with the kernel (core/client.py)."""

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from kedge.core.algorithm import Stage, Tune
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree
from kedge.engines.sums import Sums

T = TypeVar("T")


class Order(NamedTuple):
    """The values that the server sends to a client."""

    round: int  # number of finished rounds of the run
    stage_round: int  # number of finished rounds of the stage
    seed: int
    shared: Leaves  # the parameters that all clients share
    buffers: Leaves  # the server's batch-norm statistics
    broadcast: Tree  # tensors of the corrections, by slot


class Assignment(NamedTuple):
    """An order, and the clients that train on it."""

    order: Order
    clients: Sequence[int]


Rounds = Generator[Assignment, Reply, T]  # a run: yields assignments, receives replies, returns a T


class Engine(Protocol):
    """Trains the clients of a round, and stores their memories between rounds.

    `at_once` is the number of models that evaluation runs in one call. An engine whose device works
    asynchronously may also have an attribute `overlap` (overlap.py).
    """

    @property
    def at_once(self) -> int: ...

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str]) -> None:
        """Start a stage with the model `params`; clients keep their memories of the slots in `kept`."""
        ...

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train `clients` from `order`, store their memories, and return the sums of their uploads."""
        ...

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Fine-tune a copy of each client's model; yield client, parameters and statistics."""
        ...

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """Parameters and statistics of a client's own model."""
        ...

    def save(self) -> Tree:
        """All clients' memories."""
        ...

    def load(self, saved: Tree) -> None:
        """Restore memories that `save` returned."""
        ...


def drive(run: Rounds[T], engine: Engine) -> T:
    """Train the rounds of `run` on `engine` and return its result; a round's error is raised inside `run`."""
    reply: Reply | BaseException | None = None
    while True:
        try:
            order, clients = resume_run(run, reply)
        except StopIteration as end:
            return cast(T, end.value)
        try:
            reply = engine.train(order, clients).reply()
        except BaseException as error:
            reply = error


def resume_run(run: Rounds[T], reply: Reply | BaseException | None) -> Assignment:
    """Resume the generator `run` with a reply (None: start it), and return its next assignment.

    A reply that is an error is raised inside `run`. At the end of `run` StopIteration is raised.
    """
    if isinstance(reply, BaseException):
        return run.throw(reply)
    return next(run) if reply is None else run.send(reply)
