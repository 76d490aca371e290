"""An engine for tests that does late what it is to do aside, and refuses what a device could not do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.engines.engine import Order, T
from kedge.engines.stacked import Stacked

ASKS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__")


@contextmanager
def unasked() -> Iterator[None]:
    """Nobody may ask for a tensor's values: on a device that would mean to wait for them."""

    def refused(*arguments: Any) -> Any:
        raise AssertionError("a tensor's values, inside of a look")

    with pytest.MonkeyPatch.context() as patch:
        for name in ASKS:
            patch.setattr(Tensor, name, refused)
        yield


class Late(Stacked):
    """Does what it is to do aside only when the result is asked for, and calls as a graph is replayed.

    `repeated` keeps the function that it was first given under a name, the shapes, and the place of the
    result, which the next call overwrites.
    """

    beside = True

    def __init__(self, model: Model, federation: Federation, trouble: dict[int, Any] | None = None) -> None:
        super().__init__(model, federation)
        self.log: list[str] = []
        self.trouble = trouble or {}  # round -> what is raised in it, or who is rejected
        self.unheard: list[BaseException] = []  # what asking for results raises, once each

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        super().begin(stage, params, kept)
        self.known: dict[Any, tuple[Callable[..., Any], Any]] = {}
        self.places: dict[Any, Any] = {}
        self.log.append(f"begin {stage.algorithm.name}")

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        reply = super().round(order, clients)
        self.log.append(f"round {order.round + 1}")
        trouble = self.trouble.get(order.round + 1, ())
        if isinstance(trouble, BaseException):
            raise trouble
        return reply._replace(rejected=(*reply.rejected, *trouble))

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        done: list[T] = []

        def result() -> T:
            if self.unheard:
                raise self.unheard.pop()
            if not done:
                with unasked():
                    done.append(work())
            return done[0]

        return result

    def repeated(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            tensors, form = tree_flatten(arguments)
            shapes = form, [(v.shape, v.dtype) for v in tensors]
            first, same = self.known.setdefault(name, (function, shapes))
            assert shapes == same, name
            found = first(*arguments)
            place = self.places.setdefault(name, tree_map_only(Tensor, torch.clone, found))
            for old, new in zip(tree_leaves(place), tree_leaves(found), strict=True):
                old.copy_(new)
            return place

        return call
