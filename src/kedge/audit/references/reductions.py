"""Settings in which a method must equal another method, or training by torch.optim."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox
from kedge.audit.finding import Finding, compare_trees
from kedge.audit.problems import RAGGED, federation, perceptron
from kedge.audit.references.plain_sgd import open_bottom_up, proximal_loss, train_by_torch
from kedge.audit.training import train_all_clients
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.engines.sequential import Sequential

TOLERANCE = 1e-12
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)


def trained_model(algorithm: Algorithm, local: LocalTraining, rounds: int, sizes: Sequence[int]) -> Leaves:
    """The server's model after training the small perceptron."""
    model, data = perceptron(algorithm), federation(sizes)
    return train_all_clients(algorithm, local, rounds, data, model, Sequential(model, data)).server.shared


def methods_agree(
    left: Algorithm,
    right: Algorithm,
    rounds: int = 3,
    sizes: Sequence[int] = RAGGED,
    local: LocalTraining = LOCAL,
) -> Finding:
    """Two methods train the same model."""
    expected = trained_model(right, local, rounds, sizes)
    return compare_trees(expected, trained_model(left, local, rounds, sizes), expected, TOLERANCE)


def fedprox_without_mu() -> Finding:
    """FedProx with μ = 0 is FedAvg."""
    return methods_agree(fedprox(0.0), fedavg())


def fedbug_without_ratio(base: Algorithm) -> Finding:
    """FedBug with ratio 0 is the base method."""
    return methods_agree(fedbug(base, 0.0), base)


def scaffold_first_round(algorithm: Algorithm) -> Finding:
    """The first round is FedAvg with equal weights, because all control variates are 0."""
    return methods_agree(replace(algorithm, schedule=fedavg().schedule), fedavg("uniform"), rounds=1)


def feddyn_of_equal_sizes() -> Finding:
    """α_i = α·Σn/(n_i·m) equals α if all clients have the same number of samples."""
    return methods_agree(feddyn(0.1, "data"), feddyn(0.1), sizes=(8, 8, 8))


def one_client_is_sgd(
    algorithm: Algorithm, momentum: float = 0.0, mu: float = 0.0, percent: int = 0
) -> Finding:
    """One client trains as torch.optim.SGD does, with decay, weight decay, clip and short last batches."""
    local = LocalTraining(3, 4, SGD(0.2, momentum, weight_decay=1e-2, decay=0.9), clip=0.5)
    data = federation([10])
    expected = train_by_torch(
        local, 3, data, perceptron(), partial(proximal_loss, mu), partial(open_bottom_up, percent)
    )
    return compare_trees(expected, trained_model(algorithm, local, 3, [10]), expected, TOLERANCE)


def one_step_is_central(algorithm: Algorithm, sizes: Sequence[int] = RAGGED) -> Finding:
    """One full-batch step of every client is gradient descent on the samples of all clients together."""
    local, data = LocalTraining(1, 1000, SGD(0.2, weight_decay=1e-2)), federation([sum(sizes)])
    expected = train_by_torch(
        local, 3, data, perceptron(), partial(proximal_loss, 0.0), partial(open_bottom_up, 0)
    )
    return compare_trees(expected, trained_model(algorithm, local, 3, sizes), expected, TOLERANCE)
