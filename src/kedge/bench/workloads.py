"""The work that is timed: shapes and sizes, on random data."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from kedge.core.algorithm import Local
from kedge.core.model import from_module, seeded
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.models import MODELS
from kedge.running.sampling import Participation
from kedge.running.task import Task


@dataclass(frozen=True)
class Workload:
    """Equal clients that train a network on a few samples each."""

    name: str
    about: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    per_round: int
    samples: int
    batch: int
    compiled: bool  # whether a compiled row is shown

    def module(self) -> nn.Module:
        """A fresh network."""
        return seeded(lambda: MODELS[self.model](self.shape, 10), 0)

    def local(self) -> Local:
        """SGD with weight decay and clipping, one epoch."""
        return Local(1, self.batch, SGD(0.1, weight_decay=1e-3), clip=10.0)

    def federation(self, device: str) -> Federation:
        """Random images and labels."""
        generator = np.random.default_rng(0)
        count = self.clients * self.samples
        x = generator.standard_normal((count, *self.shape), dtype=np.float32)
        pool = Dataset(x, generator.integers(0, 10, count))
        shares = tuple(np.split(np.arange(count), self.clients))
        none = (np.empty(0, dtype=np.int64),) * self.clients
        return Federation(pool, shares, none, None, 10).to(device, torch.float32)

    def task(self, device: str) -> Task:
        """What the engines run; stages are added by the caller."""
        return Task(
            (), from_module(self.module()), self.federation(device), Participation(per_round=self.per_round)
        )


OVERHEAD = Workload(
    "overhead",
    "100 clients, 20 a round, 18 samples of 1×8×8, batch 10, conv 16 – conv 32 – 64 – 10",
    "small-cnn", (1, 8, 8), 100, 20, 18, 10, True,
)  # fmt: skip
COMPUTE = Workload(
    "compute",
    "10 clients, all of them, 100 samples of 3×32×32, batch 50, standard CNN",
    "standard-cnn", (3, 32, 32), 10, 10, 100, 50, False,
)  # fmt: skip
METHODS = Workload(
    "methods",
    "100 clients, 20 a round, 100 samples of 1×8×8, batch 10 (10 local steps), conv 16 – conv 32 – 64 – 10",
    "small-cnn", (1, 8, 8), 100, 20, 100, 10, True,
)  # fmt: skip
DIAGNOSTICS = Workload(
    "diagnostics",
    "10 clients, all of them, 100 samples of 3×32×32, batch 50 (2 local steps), standard CNN, stacked",
    "standard-cnn", (3, 32, 32), 10, 10, 100, 50, False,
)  # fmt: skip
WORKLOADS = {w.name: w for w in (OVERHEAD, COMPUTE)}  # on which the engines are compared
