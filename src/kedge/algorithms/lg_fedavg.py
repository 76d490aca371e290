"""LG-FedAvg (Liang et al., 2020): the base stays with the client, the last units are averaged.

The authors share the last two layers of their CIFAR-10 network, average uniformly, and start from a model
that FedAvg trained (here: "fedavg -> lg-fedavg"). PFLlib shares only the head, weights clients by size and
starts from scratch; this is the default here. The authors' script reports each client's best model on its
test set, which is optimistic; kedge reports the last model.
"""

from dataclasses import replace

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.selections import Last


def lg_fedavg(layers: int = 1, weights: Weights = "size") -> Algorithm:
    """Every client keeps its own base; the head is averaged."""
    return replace(fedavg(weights), name="lg-fedavg", shared=Last(layers))
