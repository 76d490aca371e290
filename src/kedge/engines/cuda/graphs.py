"""CUDA graphs: work recorded once on tensors in fixed places, and done again without launching its parts."""

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
    """The work as a graph, and its result; a trial of it (or it) is run before, for what compiles then."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        (trial or work)()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Threads that draw batches or write checkpoints may go on meanwhile.
    with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def in_place(tree: Any) -> Any:
    """The tree's tensors as copies that stay where they are; on a GPU, kernels have their channels last."""

    def placed(v: Tensor) -> Tensor:
        if v.dim() < 4 or not v.is_cuda:
            return v.clone(memory_format=torch.contiguous_format)
        return v.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)

    return tree_map_only(Tensor, placed, tree)


class Replayed:
    """A function of trees of tensors as a graph. What it returns is overwritten by the next call."""

    def __init__(
        self, function: Callable[..., Any], memory: Any, compile: bool = False, still: Iterable[Tensor] = ()
    ) -> None:
        """`still`: arguments that are among these stay where they are, and are read there."""
        self.function, self.memory, self.compile = function, memory, compile
        self.still = {id(v): v for v in still}
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result for these arguments, whose shapes never change."""
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
        self.work = partial(self.function, *self.arguments)  # held: what it reads must stay
        if self.compile:
            self.result = in_place(self.work())
            program = traced(lambda _, *own: self.function(*own), self.result, *self.arguments)
            self.work = partial(program, self.result, *self.arguments)
            self.graph, _ = captured(self.work, self.memory)
        else:
            self.graph, self.result = captured(self.work, self.memory)

    def placed(self, v: Tensor) -> Tensor:
        """Where the graph reads this argument."""
        return v if id(v) in self.still else in_place(v)


class Beside:
    """A stream for work beside the main one, and the way of its results to the host."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def launched(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Begin the work, after what was launched so far; a function that waits for its result."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = tree_map_only(Tensor, to_host, work())
            done = self.stream.record_event()
        return partial(waited_for, done, result, work)


def waited_for(done: torch.cuda.Event, result: Any, work: Callable[[], Any]) -> Any:
    """The result of work that is held until now, for the main stream must not reuse what it reads."""
    done.synchronize()
    return result


def to_host(v: Tensor) -> Tensor:
    """A copy that the host need not wait for; it is there when the stream has come so far."""
    if not v.is_cuda:
        return v
    return torch.empty(v.shape, dtype=v.dtype, pin_memory=True).copy_(v, non_blocking=True)


def put(places: Any, values: Any) -> None:
    """Copy a tree's tensors into those of a tree like it, if they are not the same; those that lie alike
    take one launch a dtype."""
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
    """The tensors at the same places of two trees; a dict's by their names, in whatever order they are."""
    if isinstance(place, Tensor):
        return [(place, value)]
    if isinstance(place, dict):
        return [pair for k, own in place.items() for pair in paired(own, value[k])]
    if isinstance(place, tuple | list):
        return [pair for own, other in zip(place, value, strict=True) for pair in paired(own, other)]
    return []
