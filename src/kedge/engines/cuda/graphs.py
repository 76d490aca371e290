"""CUDA graphs: capture work once on tensors with fixed addresses, then replay it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.engines.choice.compiling import explain_capture_errors
from kedge.engines.cuda.tracing import trace_program
from kedge.torch_private import foreach_copy_, tree_map_only


def capture(
    work: Callable[[], Any], graph_pool: Any, warmup: Callable[[], Any] | None = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture `work` as a graph; return the graph and the result of `work`, which each replay overwrites.

    As CUDA requires, `warmup` (or `work`) runs once before, on a side stream. The graph allocates its memory
    from `graph_pool`, a handle of `torch.cuda.graph_pool_handle`.
    """
    warmup_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    warmup_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warmup_stream):
        (warmup or work)()
    torch.cuda.current_stream().wait_stream(warmup_stream)
    graph = torch.cuda.CUDAGraph()
    # thread_local: other threads may draw batches and write checkpoints during the capture.
    with torch.cuda.graph(graph, pool=graph_pool, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def static_copies(tree: Any) -> Any:
    """Copies of a tree's tensors, whose addresses a graph may read and write."""
    return tree_map_only(Tensor, static_copy, tree)


def static_copy(v: Tensor) -> Tensor:
    """A copy; on a GPU, kernels and images (4 dimensions or more) are in channels-last layout."""
    if v.dim() < 4 or not v.is_cuda:
        return v.clone(memory_format=torch.contiguous_format)
    return v.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


class Replayed:
    """A function of trees of tensors that is captured at its first call; each call overwrites the result."""

    def __init__(
        self,
        function: Callable[..., Any],
        graph_pool: Any,
        compile: bool = False,
        static: Iterable[Tensor] = (),
    ) -> None:
        """The graph reads arguments that are in `static` at their addresses; other arguments are copied."""
        self.function, self.graph_pool, self.compile = function, graph_pool, compile
        self.static = {id(v): v for v in static}
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; the shapes of the arguments must be the same at every call."""
        if self.graph is None:
            with explain_capture_errors():
                self.capture_with(arguments)
        assert self.graph is not None
        copy_into(self.arguments, arguments)
        self.graph.replay()
        return self.result

    def capture_with(self, arguments: tuple[Any, ...]) -> None:
        """Capture the function with copies of these arguments; if `self.compile`, compile it before."""
        self.arguments = tree_map_only(Tensor, self.static_argument, arguments)
        self.work = partial(self.function, *self.arguments)  # references the tensors that the graph reads
        if self.compile:
            self.result = static_copies(self.work())
            program = trace_program(lambda _, *rest: self.function(*rest), self.result, *self.arguments)
            self.work = partial(program, self.result, *self.arguments)
            self.graph, _ = capture(self.work, self.graph_pool)
        else:
            self.graph, self.result = capture(self.work, self.graph_pool)

    def static_argument(self, v: Tensor) -> Tensor:
        """The tensor from which the graph reads the argument `v`."""
        return v if id(v) in self.static else static_copy(v)


def copy_into(targets: Any, sources: Any) -> None:
    """Copy the tensors of the tree `sources` into those of `targets`, which has the same structure.

    A tensor that is in both trees is skipped. Pairs of equal strides are copied by one launch per dtype.
    """
    grouped: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for target, source in tensor_pairs(targets, sources):
        if target is source:
            continue
        if target.stride() == source.stride() and target.dtype == source.dtype:
            grouped.setdefault(target.dtype, []).append((target, source))
        else:
            target.copy_(source)
    for pairs in grouped.values():
        foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def tensor_pairs(left: Any, right: Any) -> list[tuple[Tensor, Tensor]]:
    """The pairs of tensors of two trees with the same structure; a dict's values are paired by key."""
    if isinstance(left, Tensor):
        return [(left, right)]
    if isinstance(left, dict):
        return [pair for key, value in left.items() for pair in tensor_pairs(value, right[key])]
    if isinstance(left, tuple | list):
        return [pair for values in zip(left, right, strict=True) for pair in tensor_pairs(*values)]
    return []
