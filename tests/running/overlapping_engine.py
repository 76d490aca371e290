"""An engine for tests: its overlap computes late, and raises if work reads values on the host."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.engines.engine import Order
from kedge.engines.overlap import T, do_nothing
from kedge.engines.stack.stacked import Stacked
from kedge.engines.sums import Sums

READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")


@contextmanager
def no_reads() -> Iterator[None]:
    """Raise if this thread reads a tensor's value in this context, because it would wait for a device.

    The thread that writes checkpoints may read values at the same time.
    """
    launching = get_ident()

    def refusing(read: Callable[..., Any]) -> Callable[..., Any]:
        def refused(*arguments: Any, **settings: Any) -> Any:
            if get_ident() == launching:
                raise AssertionError("a tensor's value was read in launched work")
            return read(*arguments, **settings)

        return refused

    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            patch.setattr(Tensor, name, refusing(getattr(Tensor, name)))
        yield


class LateOverlap:
    """Computes launched work only when its result is read, and repeats functions as CUDA graphs are replayed.

    `repeat` keeps, for each name, its first function, the shapes of its arguments, and the tensors of its
    result, which the next call overwrites.
    """

    def __init__(self) -> None:
        self.overlaps = True
        self.on_busy: Callable[[], None] = do_nothing
        self.errors: list[BaseException] = []  # raised when results are read, once each
        self.forget()

    def forget(self) -> None:
        self.known: dict[Any, tuple[Callable[..., Any], Any]] = {}
        self.results: dict[Any, Any] = {}

    def launch(self, work: Callable[[], T]) -> Callable[[], T]:
        done: list[T] = []

        def result() -> T:
            if self.errors:
                raise self.errors.pop()
            if not done:
                with no_reads():
                    done.append(work())
            return done[0]

        return result

    def repeat(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            tensors, form = tree_flatten(arguments)
            shapes = form, [(v.shape, v.dtype) for v in tensors]
            first, same = self.known.setdefault(name, (function, shapes))
            assert shapes == same, name
            found = first(*arguments)
            kept = self.results.setdefault(name, tree_map_only(Tensor, torch.clone, found))
            for old, new in zip(tree_leaves(kept), tree_leaves(found), strict=True):
                old.copy_(new)
            return kept

        return call

    def record_event(self) -> None:
        return None

    def report_busy(self, since: None) -> None:
        self.on_busy()


class Late(Stacked):
    """A stacked engine with a `LateOverlap`."""

    def __init__(self, model: Model, federation: Federation, trouble: dict[int, Any] | None = None) -> None:
        super().__init__(model, federation)
        self.late = LateOverlap()
        self.overlap = self.late
        self.log: list[str] = []
        self.trouble = trouble or {}  # round -> the error raised in it, or the rejected clients

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        super().begin(stage, params, kept)
        self.late.forget()
        self.log.append(f"begin {stage.algorithm.name}")

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        sums = super().train(order, clients)
        self.log.append(f"round {order.round + 1}")
        trouble = self.trouble.get(order.round + 1, ())
        if isinstance(trouble, BaseException):
            raise trouble
        return replace(sums, rejected=(*sums.rejected, *trouble))
