"""Methods that must equal another method, or plain SGD by torch.optim."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox
from kedge.audit.finding import Finding, agreed
from kedge.audit.problems import RAGGED, federation, perceptron, trained
from kedge.audit.references.plain_sgd import bottom_up, proximal, torch_sgd
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.engines.sequential import Sequential

TOLERANCE = 1e-12
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)


def after(algorithm: Algorithm, local: LocalTraining, rounds: int, sizes: Sequence[int]) -> Leaves:
    """The server's model of the small perceptron."""
    model, data = perceptron(algorithm), federation(sizes)
    return trained(algorithm, local, rounds, data, model, Sequential(model, data)).server.shared


def same(
    left: Algorithm,
    right: Algorithm,
    rounds: int = 3,
    sizes: Sequence[int] = RAGGED,
    local: LocalTraining = LOCAL,
) -> Finding:
    """Two methods that must agree."""
    want = after(right, local, rounds, sizes)
    return agreed(want, after(left, local, rounds, sizes), want, TOLERANCE)


def fedprox_without_mu() -> Finding:
    """μ = 0 is FedAvg."""
    return same(fedprox(0.0), fedavg())


def fedbug_without_ratio(base: Algorithm) -> Finding:
    """Ratio 0 is the base method."""
    return same(fedbug(base, 0.0), base)


def scaffold_first_round(algorithm: Algorithm) -> Finding:
    """All control variates are 0 in the first round: FedAvg with equal weights."""
    return same(replace(algorithm, schedule=fedavg().schedule), fedavg("uniform"), rounds=1)


def feddyn_of_equal_sizes() -> Finding:
    """α_i = α·Σn/(n_i·m) is α where all clients are of one size."""
    return same(feddyn(0.1, "data"), feddyn(0.1), sizes=(8, 8, 8))


def one_client(algorithm: Algorithm, momentum: float = 0.0, mu: float = 0.0, percent: int = 0) -> Finding:
    """One client is plain SGD, round after round, with decay, weight decay, clip and short last batches."""
    local = LocalTraining(3, 4, SGD(0.2, momentum, weight_decay=1e-2, decay=0.9), clip=0.5)
    data = federation([10])
    want = torch_sgd(local, 3, data, perceptron(), partial(proximal, mu), partial(bottom_up, percent))
    return agreed(want, after(algorithm, local, 3, [10]), want, TOLERANCE)


def one_step(algorithm: Algorithm, sizes: Sequence[int] = RAGGED) -> Finding:
    """One full-batch step per client is gradient descent on everybody's samples joined."""
    local, data = LocalTraining(1, 1000, SGD(0.2, weight_decay=1e-2)), federation([sum(sizes)])
    want = torch_sgd(local, 3, data, perceptron(), partial(proximal, 0.0), partial(bottom_up, 0))
    return agreed(want, after(algorithm, local, 3, sizes), want, TOLERANCE)
