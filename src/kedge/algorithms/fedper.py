"""FedPer (Arivazhagan et al., 2019): the last units stay with the client, the base is averaged.

Base and head train together. A client keeps its head between participations; before the first, it has the
common initial head. A client's own model, for evaluation, is the newest base with its own head.
"""

from dataclasses import replace

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.selections import AllButLast


def fedper(head: int = 1, weights: Weights = "size") -> Algorithm:
    """Every client keeps its own head; the base is averaged."""
    return replace(fedavg(weights), name="fedper", shared=AllButLast(head))
