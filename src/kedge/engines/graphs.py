"""CUDA graphs: work recorded once on tensors in fixed places, and done again without launching its parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


def captured(work: Callable[[], Any], memory: Any, times: int = 1) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The work as a graph, and its result; it is done once before, for what compiles at first use."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        for _ in range(times):
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

    def __init__(self, function: Callable[..., Any], memory: Any) -> None:
        self.function, self.memory = function, memory
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result for these arguments, whose shapes never change."""
        if self.graph is None:
            self.arguments = in_place(arguments)
            self.graph, self.result = captured(lambda: self.function(*self.arguments), self.memory)
        torch._foreach_copy_(tensors(self.arguments), tensors(arguments))
        self.graph.replay()
        return self.result


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree."""
    return [v for v in tree_leaves(tree) if isinstance(v, Tensor)]
