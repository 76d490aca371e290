"""Test beds: clients with quadratic objectives, for which the results of training are known numbers.

Client i minimizes f_i(w) = a_i/2 ‖w − b_i‖². Each of its n_i samples is the row (a_i, b_i), and the quadratic
replaces the algorithm's loss. Everything else is kedge's own code: kernel, engines, server and runner.
Bed Q of the specification: a = (1, 2), b = (0, 3), n = (30, 10), w = 1, η = 0.1, two full-batch steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kedge.audit.specification import ORACLES
from kedge.core.algorithm import LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation, federation_from_datasets
from kedge.nn.from_module import from_module


class ParametersOnly(nn.Module):
    """A module of parameters without layers, each parameter a unit. A loss reads the parameters."""

    def __init__(self, start: Mapping[str, Sequence[float]]) -> None:
        super().__init__()
        for name, values in start.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(values, dtype=torch.float64)))
        self.units = tuple((name,) for name in start)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Bed(NamedTuple):
    """A model, the clients' samples, and the clients' objective."""

    model: Model
    federation: Federation
    loss: Callable[[Step], Tensor]


def quadratic_loss(step: Step) -> Tensor:
    """a/2 ‖w − b‖². A sample is the row (a, b); w is all leaves in the order of their names."""
    w = torch.cat([step.params[k] for k in sorted(step.params)])
    a, b = step.batch.x[:, 0], step.batch.x[:, 1:]
    return weighted_mean(a / 2 * ((w - b) ** 2).sum(1), step.batch)


def quadratic_bed(
    start: Mapping[str, Sequence[float]], rows: Sequence[Sequence[float]], sizes: Sequence[int]
) -> Bed:
    """Clients with objectives `rows` (a_i, b_i) and `sizes` samples; the model starts at `start`."""
    clients = [
        Dataset(torch.tensor([row] * n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64))
        for row, n in zip(rows, sizes, strict=True)
    ]
    data = federation_from_datasets(clients, None).to("cpu", torch.float64)
    return Bed(from_module(ParametersOnly(start)), data, quadratic_loss)


def bed_q() -> Bed:
    """Bed Q of the specification: two clients and one parameter."""
    q = ORACLES["test_bed_Q"]
    return quadratic_bed({"w": [q["w0"]]}, list(zip(q["a"], q["b"], strict=True)), q["n_samples"])


def local_q(weight_decay: float = 0.0, clip: float | None = None, decay: float = 1.0) -> LocalTraining:
    """Local training on bed Q: full batches."""
    q = ORACLES["test_bed_Q"]
    return LocalTraining(q["local_steps"], 1000, SGD(q["lr"], weight_decay=weight_decay, decay=decay), clip)
