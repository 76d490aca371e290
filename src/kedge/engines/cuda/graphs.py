"""CUDA graphs: work that is captured once, on tensors with fixed addresses, and replayed."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.engines.compiling import explain_capture_errors
from kedge.engines.cuda.tracing import traced
from kedge.torch_private import foreach_copy_, tree_map_only


def captured(
    work: Callable[[], Any], memory: Any, trial: Callable[[], Any] | None = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture the work as a graph, and return it with its result; `trial` (or the work) runs once before."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        (trial or work)()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads may draw batches and write checkpoints during the capture.
    with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def in_place(tree: Any) -> Any:
    """Copies of a tree's tensors; on a GPU, kernels of convolutions are in channels-last layout."""

    def placed(v: Tensor) -> Tensor:
        if v.dim() < 4 or not v.is_cuda:
            return v.clone(memory_format=torch.contiguous_format)
        return v.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)

    return tree_map_only(Tensor, placed, tree)


class Replayed:
    """A function of trees of tensors as a graph; the next call overwrites its result."""

    def __init__(
        self, function: Callable[..., Any], memory: Any, compile: bool = False, still: Iterable[Tensor] = ()
    ) -> None:
        """Arguments that are among the tensors `still` are read at their own addresses, without a copy."""
        self.function, self.memory, self.compile = function, memory, compile
        self.still = {id(v): v for v in still}
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The result for these arguments, whose shapes never change."""
        if self.graph is None:
            with explain_capture_errors():
                self.make(arguments)
        assert self.graph is not None
        put(self.arguments, arguments)
        self.graph.replay()
        return self.result

    def make(self, arguments: tuple[Any, ...]) -> None:
        """Compile the function if `self.compile`, and capture it."""
        self.arguments = tree_map_only(Tensor, self.placed, arguments)
        self.work = partial(self.function, *self.arguments)  # keeps alive what the graph reads
        if self.compile:
            self.result = in_place(self.work())
            program = traced(lambda _, *own: self.function(*own), self.result, *self.arguments)
            self.work = partial(program, self.result, *self.arguments)
            self.graph, _ = captured(self.work, self.memory)
        else:
            self.graph, self.result = captured(self.work, self.memory)

    def placed(self, v: Tensor) -> Tensor:
        """The tensor from which the graph reads this argument."""
        return v if id(v) in self.still else in_place(v)


def put(places: Any, values: Any) -> None:
    """Copy a tree's tensors into those of a tree with the same structure.

    A tensor that is in both trees is skipped. Pairs of equal strides take one launch per dtype.
    """
    alike: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for place, value in paired(places, values):
        if place is value:
            continue
        if place.stride() == value.stride() and place.dtype == value.dtype:
            alike.setdefault(place.dtype, []).append((place, value))
        else:
            place.copy_(value)
    for pairs in alike.values():
        foreach_copy_([place for place, _ in pairs], [value for _, value in pairs])


def paired(place: Any, value: Any) -> list[tuple[Tensor, Tensor]]:
    """The pairs of tensors of two trees with the same structure; a dict's values are paired by key."""
    if isinstance(place, Tensor):
        return [(place, value)]
    if isinstance(place, dict):
        return [pair for k, own in place.items() for pair in paired(own, value[k])]
    if isinstance(place, tuple | list):
        return [pair for own, other in zip(place, value, strict=True) for pair in paired(own, other)]
    return []
