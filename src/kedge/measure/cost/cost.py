"""The cost of one round: parameters updated, multiply-adds, bytes down and up.

Two papers define costs of their own. The layer-expansion paper's "FLOPs" are trainable parameters × batches ×
all clients × rounds, even with partial participation: they count how often a parameter is updated, not how
much is computed. The switching paper's relative cost is the mean price of a round, with 1.5 for a round of
FedDyn and 1 for a round of FedAvg.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """The cost of a round, summed over its clients."""

    parameters: int  # distinct parameters that train in at least one step on at least one client
    samples: int  # training samples processed, counted in every epoch
    updates: int  # trainable parameters, summed over the steps of all clients
    macs: int  # multiply-adds (MACs) of training
    bytes_down: int  # from the server to all clients
    bytes_up: int


def relative_cost(rounds: Sequence[int], prices: Iterable[float]) -> float:
    """The mean price of a round, given the number of rounds and the price per round of each stage."""
    return sum(n * price for n, price in zip(rounds, prices, strict=True)) / sum(rounds)
