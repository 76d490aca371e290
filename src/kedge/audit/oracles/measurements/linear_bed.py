"""The linear laboratory's experiment, trained by kedge's kernel, engines, schedules and server.

The network has m + 1 numbers: n_1 … n_m, one for each client, and the shared v.
"""

from dataclasses import replace

import torch
from torch import Tensor

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.fedbabu import fedbabu
from kedge.algorithms.fedbug import BottomUp
from kedge.audit.bed import Bed, ParametersOnly
from kedge.audit.recorded_run import record_rounds
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
from kedge.measure.theory.linear import NEVER, Network, Point, Training, next_round
from kedge.nn.from_module import from_module


def linear_bed(network: Network, start: Point, gradient: float) -> Bed:
    """The laboratory as a bed: client j has the j-th unit vector as its sample and minimizes g/2·(f − 1)²."""
    m = start.n.shape[-1]
    rows = torch.eye(m, dtype=torch.float64)
    clients = [Dataset(row[None], torch.zeros(1, dtype=torch.int64)) for row in rows]

    def objective(step: Step) -> Tensor:
        n = step.batch.x @ step.params["n"]
        error = network.output(n, step.params["v"].expand_as(n)) - 1
        return weighted_mean(gradient / 2 * error**2, step.batch)

    module = ParametersOnly({"n": start.n.tolist(), "v": [float(start.v)]})
    data = federation_from_datasets(clients, None).to("cpu", torch.float64)
    return Bed(from_module(module), data, objective)


def method_that_freezes(frozen: float, steps: int) -> Algorithm:
    """kedge's method that freezes v in the first `frozen` of `steps` local steps."""
    if frozen == NEVER:
        return fedbabu("uniform")
    return replace(fedavg("uniform"), schedule=BottomUp(2 * frozen / steps))  # the network has two units


def next_round_by_engine(network: Network, start: Point, training: Training) -> dict[str, Point]:
    """The server's numbers after one round, by engine."""
    local = LocalTraining(training.steps, 1, SGD(training.lr))
    stages = [(method_that_freezes(training.frozen, training.steps), 1)]
    cohorts = [range(start.n.shape[-1])]
    bed, after = linear_bed(network, start, training.gradient), {}
    for name, engine in ENGINES.items():
        shared = record_rounds(bed, stages, local, cohorts, engine)[0].server.shared
        after[name] = Point(shared["n"], shared["v"][0])
    return after


def next_rounds(network: Network, start: Point, training: Training) -> dict[str, Point]:
    """The numbers after one round of gradient descent: by the laboratory's formulas, and by each engine."""
    laboratory = {"laboratory": next_round(network, start, training)}
    return laboratory | next_round_by_engine(network, start, training)
