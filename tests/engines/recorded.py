"""CUDA graphs for tests without a GPU: a replay calls the captured function again and copies its result.

Only graphs, the compiler and streams are replaced. All other code of the captured engine runs as on a GPU:
lanes, tables, copies to static tensors, packs, evaluation beside training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from kedge.engines.cuda import captured, graphs, lanes
from kedge.engines.cuda.graphs import copy_into


class Recorded:
    """A stand-in for a CUDA graph."""

    def __init__(self, work: Callable[[], Any], result: Any) -> None:
        self.work, self.result = work, result

    def replay(self) -> None:
        copy_into(self.result, self.work())


class Stream:
    """A stand-in for a stream or an event; all work runs in the order of its calls."""

    def __getattr__(self, name: str) -> Callable[..., "Stream"]:
        return lambda *_: self


def record(work: Callable[[], Any], memory: Any, trial: Any = None) -> tuple[Recorded, Any]:
    result = (trial or work)()  # a capture computes nothing
    return Recorded(work, result), result


def trace_program(
    function: Callable[..., Any], *arguments: Any, repeatable: bool = True
) -> Callable[..., None]:
    def run(*own: Any) -> None:
        after = function(*own)
        assert [v.shape for v in tree_leaves(own)] == [v.shape for v in tree_leaves(arguments)]
        copy_into(own[0], after)

    return run


def call_operators(graph: GraphModule, *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    """A program that calls the operators of the graph one by one."""
    return lambda *own: graph(*tree_leaves(own))


@contextmanager
def on_the_cpu(trace_operators: bool = False) -> Iterator[None]:
    """Let the captured engine run on the CPU; `trace_operators`: from the traced graph, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured, "check_device", lambda federation: None)
        for module in (graphs, lanes):
            patch.setattr(module, "capture", record)
        patch.setattr(graphs, "trace_program", trace_program)
        if trace_operators:
            patch.setattr(lanes, "compile_operators", call_operators)
        else:
            patch.setattr(lanes, "compile_operators", trace_program)
            patch.setattr(lanes, "trace_operators", lambda function, *arguments: function)
            patch.setattr(lanes, "rounded_inputs", lambda function, first: [])
            patch.setattr(lanes, "read_copies", lambda function, which: function)
        for name, stand_in in {
            "Stream": Stream,
            "current_stream": Stream,
            "stream": lambda stream: nullcontext(),
            "graph_pool_handle": lambda: None,
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
        }.items():
            patch.setattr(torch.cuda, name, stand_in)
        yield
