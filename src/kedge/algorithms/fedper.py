"""FedPer (Arivazhagan et al., 2019): the last units stay with the client, the base is averaged.

Base and head train together; the head is kept between participations, and a client that was never asked has
the common initial one. A client is evaluated with the newest base and its own head.
"""

from dataclasses import replace

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.selections import AllButLast


def fedper(head: int = 1, weights: Weights = "size") -> Algorithm:
    """Every client keeps its own head; the base is averaged."""
    return replace(fedavg(weights), name="fedper", shared=AllButLast(head))
