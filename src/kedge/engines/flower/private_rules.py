"""The rules of a private run (client-level differential privacy) in a federation, for the server's engine.

A client sends its clipped delta and nothing else that depends on its data: no loss, no weight, no statistics.
The server does not trust the clients' clipping. It admits each upload by itself: whether one upload is used
does not depend on the others, as it would with a limit on norms relative to their median.
"""

from collections.abc import Callable
from typing import NamedTuple

from kedge.core.algorithm import Stage
from kedge.core.tree import Leaves
from kedge.engines.engine import Order
from kedge.engines.flower.messages import Content
from kedge.engines.flower.upload_check import Expected
from kedge.engines.sums import Sums


class PrivateRules(NamedTuple):
    """The part of a private run that the engine needs; it is passed in, because engines import no privacy."""

    opened: Callable[[Stage, Order], frozenset[str]]  # leaves that the schedule opens, for any client
    admit: Callable[[Content, Expected], Sums]  # the sums of an upload, clipped by the server


def changed_leaves(before: Leaves, now: Leaves) -> frozenset[str]:
    """The leaves whose tensors have been replaced since the last order.

    In a private run a round changes the model also if it has no clients: noise is added to an empty sum.
    """
    return frozenset(k for k, v in now.items() if before.get(k) is not v)
