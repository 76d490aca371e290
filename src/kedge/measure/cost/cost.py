"""What training costs: parameters updated, multiply-adds, bytes down and up.

The papers' count, Σ over rounds, clients and batches of the parameters that train, is the layer-expansion
paper's "FLOPs" (trainable parameters × batches × all clients × rounds, also where only some take part); it
says how often a number is written, not how much is computed. The switching paper's relative cost is the
mean price of a round, FedDyn's taken as 1.5 times FedAvg's.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """Of a round, over all its clients."""

    parameters: int  # that trained in some step of the round on some client
    samples: int  # trained on, each as often as it was
    updates: int  # parameters that train, summed over the steps of all clients
    macs: int  # multiply-adds of training
    bytes_down: int  # from the server to all clients
    bytes_up: int


def relative_cost(rounds: Sequence[int], prices: Iterable[float]) -> float:
    """The mean price of a round, of stages of so many rounds at so much a round."""
    return sum(n * price for n, price in zip(rounds, prices, strict=True)) / sum(rounds)
