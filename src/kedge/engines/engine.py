"""Engine: the protocol of a place where clients train. It arranges calls of the kernel and learns nothing."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.algorithm import Algorithm, Stage, Tune
from kedge.core.client import unit_gradient_distance
from kedge.core.correction import Weight
from kedge.core.model import Model
from kedge.core.server import Rejection, Reply, upload_weights
from kedge.core.tree import Leaves, Tree, tree_foreach, tree_map
from kedge.data.batches import Plan
from kedge.torch_private import foreach_div, tree_map_only

T = TypeVar("T")
Told = tuple[list[bool], list[float]]  # flags and losses of rows
Totals = dict[str, tuple[dict[str, Any], Tensor]]  # by slot ("": deltas and buffers): weighted sum, mass


class Order(NamedTuple):
    """Exactly what goes to a client."""

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


def drive(run: Rounds[T], engine: "Engine") -> T:
    """Train the rounds of a run on one engine; errors of a round are raised in the run."""
    reply: Reply | BaseException | None = None
    while True:
        try:
            order, clients = resume_run(run, reply)
        except StopIteration as end:
            return cast(T, end.value)
        try:
            reply = engine.round(order, clients)
        except BaseException as error:
            reply = error


def resume_run(run: Rounds[T], reply: Reply | BaseException | None) -> Assignment:
    """The next assignment of a run after this reply (None: its first); StopIteration where it ends."""
    if isinstance(reply, BaseException):
        return run.throw(reply)
    return next(run) if reply is None else run.send(reply)


def do_nothing() -> None:
    """The `on_busy` of an engine whose run overlaps nothing."""


class Engine(Protocol):
    """A place where clients train; it owns their memories.

    `at_once` is how many models it likes to run side by side, `repeated` its way to call a function of trees
    of tensors again and again with the same shapes; what comes back is overwritten by the next call.

    `aside` begins a work and hands back what gives its result, a tree of tensors, on the CPU: it waits if it
    must, and may be called much later, or twice. The work reads only tensors that nobody changes, asks for
    none of their values, and may use `repeated`. Works are done in the order they were begun; another may
    begin before the result of the first is taken. `beside` says that `aside` does not wait for the device, so
    that who does something else before asking gains.

    `on_busy` is a callback: an engine that is `beside` calls it in every round when its device is busy with
    the round's work. It may be called more than once in a round, and never raises an error.
    """

    on_busy: Callable[[], None]

    @property
    def at_once(self) -> int: ...
    @property
    def beside(self) -> bool: ...
    def aside(self, work: Callable[[], T]) -> Callable[[], T]: ...
    def repeated(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]: ...
    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str]) -> None: ...
    def round(self, order: Order, clients: Sequence[int]) -> Reply: ...
    def tuned(
        self, order: Order, clients: Sequence[int], tune: Tune
    ) -> Iterator[tuple[int, Leaves, Leaves]]: ...
    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]: ...
    def save(self) -> Tree: ...
    def load(self, saved: Tree) -> None: ...


def done_now(work: Callable[[], T]) -> Callable[[], T]:
    """The work, done before anything else is; what gives its result on the CPU."""
    result: T = tree_map_only(Tensor, Tensor.cpu, work())
    return lambda: result


class Mean:
    """Running weighted means of uploads; each part of an upload has its weights."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.weights = upload_weights(algorithm)
        self.totals: dict[str, Any] = {}
        self.mass: dict[str, Tensor] = {}
        self.rejected: list[Rejection] = []
        self.size = 0
        self.loss = 0.0

    def add(
        self,
        uploads: dict[str, Any],
        facts: Leaves,
        admitted: Tensor,
        clients: Sequence[int],
        totals: Totals | None = None,
        told: Told | None = None,
    ) -> None:
        """Take in stacked uploads, one row a client; rows not admitted are named and left out.

        `totals` are the weighted sums of all rows, and `told` what the host knows of them, where the caller
        has these already.
        """
        flags, losses = told or told_of(uploads, admitted)
        self.rejected += [
            Rejection(c, "not finite") for c, fine in zip(clients, flags, strict=True) if not fine
        ]
        self.size += sum(flags)
        if not all(flags):  # a product with weight 0 would keep the NaN
            uploads = tree_map(lambda v: torch.where(shaped(admitted, v), v, torch.zeros_like(v)), uploads)
            totals = None
        self.loss += sum(loss for loss, fine in zip(losses, flags, strict=True) if fine)
        for slot, (total, mass) in (
            totals or weighted_totals(self.weights, uploads, facts, admitted)
        ).items():
            if slot in self.totals:
                self.totals[slot] = tree_map(torch.add, self.totals[slot], total)
                self.mass[slot] = self.mass[slot] + mass
            else:
                self.totals[slot], self.mass[slot] = total, mass

    def reply(
        self, trained: frozenset[str], means: dict[str, Any] | None = None, average: Leaves | None = None
    ) -> Reply:
        """The means of what was taken in; by slot, and added up, where the caller has them already."""
        if not self.size:
            return Reply({}, 0, trained, tuple(self.rejected), {})
        if means is None:
            means = {slot: divided(total, self.mass[slot]) for slot, total in self.totals.items()}
        whole = means.pop("")
        metrics = {"train.loss": self.loss / self.size}
        return Reply({**whole, "slots": means}, self.size, trained, tuple(self.rejected), metrics, average)


def ran_out(error: BaseException | None) -> bool:
    """Whether this is about a device's memory; a capture or compilation that breaks off tells it only so."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def told_of(uploads: dict[str, Any], admitted: Tensor) -> Told:
    """Of every row whether it is admitted, and its loss: the host waits here, once."""
    loss = uploads["loss"]
    flags, losses = torch.stack((admitted.to(loss.dtype), loss)).tolist()
    return [bool(flag) for flag in flags], losses


def divided(total: Tree, mass: Tensor) -> dict[str, Any]:
    """Every sum by the mass."""

    def by_mass(sums: list[Tensor]) -> Sequence[Tensor]:
        if len({v.dtype for v in sums}) == 1:
            return foreach_div(sums, mass.to(sums[0].dtype))
        return [v / mass.to(v.dtype) for v in sums]

    return tree_foreach(by_mass, total)


def weighted_totals(
    weights: dict[str, Weight], uploads: dict[str, Any], facts: Leaves, admitted: Tensor
) -> Totals:
    """For every part of the uploads: the weighted sum over its rows, and the sum of weights.

    Flags [groups, rows] instead of [rows] give the sums of each group of rows.
    """
    totals: Totals = {}
    for slot, weight in weights.items():
        part = uploads["slots"][slot] if slot else {"delta": uploads["delta"], "buffers": uploads["buffers"]}
        mass = weight(facts) * admitted
        total = tree_map(partial(summed, mass), part)
        totals[slot] = total, mass.sum(-1)
    return totals


def summed(mass: Tensor, rows: Tensor) -> Tensor:
    """The weighted sum of rows; of kernels whose channels lie last without a copy of all of them."""
    last = rows.dim() > 3 and not rows.is_contiguous()
    total: Tensor = torch.tensordot(mass.to(rows.dtype), rows.movedim(-3, -1) if last else rows, dims=1)
    return total.movedim(-1, -3).contiguous() if last else total


def shaped(flags: Tensor, like: Tensor) -> Tensor:
    """Flags [clients] with trailing axes so that they broadcast over `like`."""
    return flags.view(-1, *([1] * (like.dim() - 1)))


def trainable(model: Model, mask: Sequence[bool]) -> tuple[str, ...]:
    """The leaves that train under a mask; added heads always do."""
    return (
        *(k for unit, opened in zip(model.units, mask, strict=True) if opened for k in unit),
        *model.extra,
    )


def lr_times(model: Model, steps: Tensor, trained: Tensor, lr: Tensor, momentum: float) -> Leaves:
    """Per leaf and client: the learning rates summed while it trained, of its steps and its units' ones."""
    times = {
        k: lr * unit_gradient_distance(trained[:, u], momentum)
        for u, unit in enumerate(model.units)
        for k in unit
    }
    return times | {k: lr * unit_gradient_distance(steps, momentum) for k in model.extra}


def counted(own: Plan, like: Tensor) -> tuple[Tensor, Tensor]:
    """Per client: its steps, and those in which each unit trained."""
    steps, trained = (sent(v, like.device).to(like.dtype) for v in (own.steps, own.trained))
    return steps, trained


def sent(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device; the host does not wait until a GPU comes to it."""
    return staged(values, device).to(device, non_blocking=True)


def staged(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values where a GPU reads them by itself."""
    return torch.from_numpy(values).pin_memory() if device.type == "cuda" else torch.from_numpy(values)
