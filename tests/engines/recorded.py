"""CUDA graphs for tests without a GPU: what is captured is done anew at every replay, in the same places.

The captured engine's own work (lanes, tables, what is put where and when, packs, looks) runs as it is; only
recording, compiling and streams are stood in for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from kedge.engines.cuda import captured, graphs, lanes
from kedge.engines.cuda.graphs import put


class Recorded:
    """A graph."""

    def __init__(self, work: Callable[[], Any], result: Any) -> None:
        self.work, self.result = work, result

    def replay(self) -> None:
        put(self.result, self.work())


class Stream:
    """A stream, or an event on it: everything is done in the order it is asked for."""

    def __getattr__(self, name: str) -> Callable[..., "Stream"]:
        return lambda *_: self


def recorded(work: Callable[[], Any], memory: Any, trial: Any = None) -> tuple[Recorded, Any]:
    result = (trial or work)()  # recording alone does nothing
    return Recorded(work, result), result


def traced(function: Callable[..., Any], *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    def run(*own: Any) -> None:
        after = function(*own)
        assert [v.shape for v in tree_leaves(own)] == [v.shape for v in tree_leaves(arguments)]
        put(own[0], after)

    return run


def as_written(graph: GraphModule, *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    """The operators one by one instead of compiled."""
    return lambda *own: graph(*tree_leaves(own))


@contextmanager
def on_the_cpu(written_down: bool = False) -> Iterator[None]:
    """The captured engine works on the CPU; `written_down`: from the list of operators that is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured, "check_device", lambda federation: None)
        for module in (graphs, lanes):
            patch.setattr(module, "captured", recorded)
        patch.setattr(graphs, "traced", traced)
        if written_down:
            patch.setattr(lanes, "compiled", as_written)
        else:
            patch.setattr(lanes, "compiled", traced)
            patch.setattr(lanes, "written_down", lambda function, *arguments: function)
            patch.setattr(lanes, "rounded", lambda function, first: [])
            patch.setattr(lanes, "reading_copies", lambda function, which: function)
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
