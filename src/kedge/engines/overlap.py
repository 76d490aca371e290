"""Overlap: work on the host, or on a second stream, while a device trains. Optional for an engine."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import Tensor

from kedge.torch_private import tree_map_only

T = TypeVar("T")


class Overlap(Protocol):
    """Runs work while the device trains a round.

    `on_busy` is a callback: the engine calls it in every round, when the device is busy with the round's
    work. It may be called more than once in a round, and never raises an error.

    `launch` starts the function `work`, and returns a function that waits for its result: a tree of tensors
    on the CPU. That function may be called much later, or twice. `work` must not read tensors that change
    later, nor read values on the host; it may use `repeat`. Launched functions run in the order of `launch`.

    `repeat` wraps a function of trees of tensors that is called often with the same shapes, such as the
    forward pass of an evaluation; the next call overwrites the result.
    """

    on_busy: Callable[[], None]

    @property
    def overlaps(self) -> bool:
        """Whether `launch` returns before the device is done."""
        ...

    def launch(self, work: Callable[[], T]) -> Callable[[], T]: ...
    def repeat(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]: ...
    def record_event(self) -> Any:
        """Record an event on the stream that trains."""
        ...

    def report_busy(self, since: Any) -> None:
        """Call `on_busy`; work that it launches waits for the event `since`, not for the round's training."""
        ...


class NoOverlap:
    """Computes each work when it is launched."""

    overlaps = False

    def __init__(self) -> None:
        self.on_busy: Callable[[], None] = do_nothing

    def launch(self, work: Callable[[], T]) -> Callable[[], T]:
        """Compute `work` now; return a function that returns its result."""
        return compute_now(work)

    def repeat(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        return function

    def record_event(self) -> Any:
        """No event: there is no stream."""
        return None

    def report_busy(self, since: Any) -> None:
        """Call `on_busy`."""
        self.on_busy()


def overlap_of(engine: Any) -> Overlap:
    """The overlap of an engine; `NoOverlap` if it has none."""
    overlap: Overlap | None = getattr(engine, "overlap", None)
    return overlap or NoOverlap()


def do_nothing() -> None:
    """The `on_busy` of an engine whose run overlaps nothing."""


def compute_now(work: Callable[[], T]) -> Callable[[], T]:
    """Compute `work` now; return a function that returns its result on the CPU."""
    result: T = tree_map_only(Tensor, Tensor.cpu, work())
    return lambda: result
