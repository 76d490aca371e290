"""Operators that vmap does not know: it computes them client by client, and warns of it at every call.

Users are told once, in kedge's own words, by the trial of `auto` that finds them; torch's warning is switched
off while a run lasts.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

FUNCTORCH: Any = torch._C._functorch  # whose stubs do not know the switch of the warning
# Backward passes and inner forms of an operator are named as the operator: _embedding_bag_backward as well.
WARNING = re.compile(r"There is a performance drop because .* batching rule for aten::_?(\w+?)(_backward)?\.")
INSIDE = (  # what torch says of the way kedge calls a user's module
    r"Mismatch dtype between input and weight",  # autocast gives a norm bfloat16 beside weights in float32
    r"RNN module weights are not part of single contiguous chunk",  # they are the client's, not the module's
)


class Switch:
    """Torch's warning, off while any run of this process lasts."""

    def __init__(self) -> None:
        self.runs = 0
        self.lock = Lock()

    def add(self, runs: int) -> None:
        """So many runs more; it is on again after the last one."""
        with self.lock:
            self.runs += runs
            FUNCTORCH._set_vmap_fallback_warning_enabled(self.runs == 0)


SWITCH = Switch()


@contextmanager
def without_torch_warnings() -> Iterator[None]:
    """Do not show what torch warns of in its own insides; what a user's code warns of is shown."""
    for message in INSIDE:
        warnings.filterwarnings("ignore", message)
    SWITCH.add(1)
    try:
        yield
    finally:
        SWITCH.add(-1)


@contextmanager
def operators_found() -> Iterator[list[str]]:
    """Collect the operators that vmap does not know, in what is computed here."""
    operators: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FUNCTORCH._set_vmap_fallback_warning_enabled(True)
        try:
            yield operators
        finally:
            SWITCH.add(0)
    for one in caught:
        match = WARNING.match(str(one.message))
        if match is None:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        elif (name := f"aten::{match[1]}") not in operators:
            operators.append(name)
