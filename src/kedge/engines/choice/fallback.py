"""Operators without a batching rule: vmap computes them client by client, and warns at every call.

The trial of engine "auto" collects these operators, and kedge reports them once. torch's own warning is off
while a run trains.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from kedge.torch_private import set_vmap_fallback_warning

# The group is the operator's name, also for its backward and inner forms: _embedding_bag_backward.
WARNING = re.compile(r"There is a performance drop because .* batching rule for aten::_?(\w+?)(_backward)?\.")
HIDDEN = (  # torch's warnings about the way kedge calls a user's module
    r"Mismatch dtype between input and weight",  # autocast passes bfloat16 to a norm with float32 weights
    r"RNN module weights are not part of single contiguous chunk",  # each client has its own weights
)


class WarningSwitch:
    """Switches torch's warning off while any run of this process trains."""

    def __init__(self) -> None:
        self.runs = 0
        self.lock = Lock()

    def add(self, runs: int) -> None:
        """Change the number of active runs by `runs`; with no active run the warning is on."""
        with self.lock:
            self.runs += runs
            set_vmap_fallback_warning(self.runs == 0)


SWITCH = WarningSwitch()


@contextmanager
def without_torch_warnings() -> Iterator[None]:
    """Hide torch's warnings about the way kedge calls a module; warnings of a user's code are shown."""
    for message in HIDDEN:
        warnings.filterwarnings("ignore", message)
    SWITCH.add(1)
    try:
        yield
    finally:
        SWITCH.add(-1)


@contextmanager
def collect_fallback_operators() -> Iterator[list[str]]:
    """Yield a list; at the end of this context it has the operators that vmap computed client by client."""
    operators: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        set_vmap_fallback_warning(True)
        try:
            yield operators
        finally:
            SWITCH.add(0)  # restores torch's setting
    for warning in caught:
        match = WARNING.match(str(warning.message))
        if match is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif (name := f"aten::{match[1]}") not in operators:
            operators.append(name)
