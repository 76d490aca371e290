"""SideStream: a second CUDA stream, on which models are evaluated while the main stream trains."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from kedge.engines.cuda.graphs import Replayed
from kedge.engines.overlap import do_nothing
from kedge.torch_private import tree_map_only

T = TypeVar("T")


class SideStream:
    """The `Overlap` (engines/overlap.py) of an engine on a CUDA device."""

    overlaps = True

    def __init__(self) -> None:
        self.on_busy: Callable[[], None] = do_nothing
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graphs: dict[Any, Replayed] = {}
        self.graph_pool: Any = None

    def forget(self) -> None:
        """Release the captured graphs; later graphs allocate from a new pool."""
        self.graphs, self.graph_pool = {}, torch.cuda.graph_pool_handle()

    def launch(self, work: Callable[[], T]) -> Callable[[], T]:
        """Launch `work` after all work on the current stream; return a function that waits for its result."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = tree_map_only(Tensor, to_host, work())
            done = self.stream.record_event()
        return partial(wait_for, done, result, work)

    def repeat(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a graph, compiled and captured at its first call; `name` is its key."""
        return self.graphs.setdefault(name, Replayed(function, self.graph_pool, compile=True))

    def record_event(self) -> Any:
        """Record an event on the main stream."""
        return torch.cuda.current_stream().record_event()

    def report_busy(self, since: Any) -> None:
        """Call `on_busy`; work that it launches waits for the event `since`, and not for later work."""
        self.stream.wait_event(since)
        with torch.cuda.stream(self.stream):
            self.on_busy()


def wait_for(done: torch.cuda.Event, result: Any, work: Callable[[], Any]) -> Any:
    """Wait for the event `done`, and return `result`.

    The reference to `work` keeps its input tensors alive: the main stream must not reuse their memory.
    """
    done.synchronize()
    return result


def to_host(v: Tensor) -> Tensor:
    """An asynchronous copy of `v` in pinned memory; events recorded after this call include the copy."""
    if not v.is_cuda:
        return v
    return torch.empty(v.shape, dtype=v.dtype, pin_memory=True).copy_(v, non_blocking=True)
