"""FedBABU (Oh et al., 2022): the head stays at its common random start, the base is trained and averaged.

For evaluation every client fine-tunes a copy of the newest model, by default all of it for five epochs
(PFLlib starts from the client's last model instead). The head is frozen: no gradient, no weight decay, no
step. The authors' code computes the head's gradient and applies it with learning rate 0. The authors average
uniformly, PFLlib by size.
"""

from dataclasses import replace

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm, Tune
from kedge.core.schedules import FixLast


def fedbabu(weights: Weights = "size") -> Algorithm:
    """Only the base is trained; for evaluation clients fine-tune a copy of the whole model."""
    return replace(fedavg(weights), name="fedbabu", schedule=FixLast(1), tune=Tune())
