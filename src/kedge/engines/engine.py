"""Engine: the protocol of the objects that train clients. An engine arranges calls of the kernel (core)."""

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from kedge.core.algorithm import Stage, Tune
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree
from kedge.engines.sums import Sums

T = TypeVar("T")


class Order(NamedTuple):
    """The values that the server sends to a client."""

    round: int
    stage_round: int
    seed: int
    shared: Leaves
    buffers: Leaves
    broadcast: Tree


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
    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str]) -> None: ...
    def train(self, order: Order, clients: Sequence[int]) -> Sums: ...
    def tune(
        self, order: Order, clients: Sequence[int], tune: Tune
    ) -> Iterator[tuple[int, Leaves, Leaves]]: ...
    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]: ...
    def save(self) -> Tree: ...
    def load(self, saved: Tree) -> None: ...


def drive(run: Rounds[T], engine: Engine) -> T:
    """Train the rounds of a run on one engine; errors of a round are raised in the run."""
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
    """The next assignment of a run after this reply (None: its first); StopIteration at its end."""
    if isinstance(reply, BaseException):
        return run.throw(reply)
    return next(run) if reply is None else run.send(reply)
