"""FedBABU (Oh et al., 2022): the head stays at its common random start, the base is trained and averaged.

At evaluation every client fine-tunes a copy, by default all of it for five epochs from the newest base
(PFLlib starts from whatever the client last held). Frozen means no gradient, no weight decay and no step;
the authors' code computes the head's gradient and applies it with learning rate 0. They average uniformly,
PFLlib by size.
"""

from dataclasses import replace

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm, Tune
from kedge.core.schedules import FixLast


def fedbabu(weights: Weights = "size") -> Algorithm:
    """Only the base is trained; clients fine-tune a copy of the whole when they are evaluated."""
    return replace(fedavg(weights), name="fedbabu", schedule=FixLast(1), tune=Tune())
