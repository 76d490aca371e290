"""Copies from the GPU to the host in another thread, while the training thread may capture a graph.

`torch.cuda.Stream()` returns one of 32 streams in turn, so a new stream may be the capturing one, on which a
copy to the host is an error and invalidates the capture. Streams of another priority come from another pool:
copies use a high-priority stream, and graphs are captured on streams of normal priority only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

Event = torch.cuda.Event


def recorded_event() -> Event:
    """A new event, recorded on the current stream."""
    event: Event = torch.cuda.current_stream().record_event()
    return event


@contextmanager
def copying_after(event: Event) -> Iterator[None]:
    """Wait for the event, then make `copy_stream` the current stream of this thread."""
    event.synchronize()
    with torch.cuda.stream(copy_stream()):
        yield


@cache
def copy_stream() -> torch.cuda.Stream:
    """The stream on which other threads copy to the host; no graph is captured on it."""
    return torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
