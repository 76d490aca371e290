"""The workloads that are timed: a network, clients and batches of random data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from kedge.algorithms import fedavg
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded

LEARNING_RATE = 0.1
SMALL_STEPS = SGD(1e-3, weight_decay=1e-3)  # no method diverges


def pfl_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """pfl-research's network for CIFAR-10: two convolutions, a pooling, two linear layers, no dropout."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


FACTORIES: dict[str, Callable[..., nn.Module]] = {**MODELS, "pfl-cnn": pfl_cnn}


@dataclass(frozen=True)
class Workload:
    """FedAvg on a network, with clients of equal size."""

    name: str
    about: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    per_round: int
    samples: int  # of a client
    batch: int
    compiled: bool  # whether compiling pays on a CPU
    classes: int = 10
    weight_decay: float = 1e-3
    clip: float | None = 10.0

    def module(self, seed: int = 0) -> nn.Module:
        """A new network."""
        return seeded(lambda: FACTORIES[self.model](self.shape, self.classes), seed)

    def local(self) -> LocalTraining:
        """SGD with weight decay and clipping, one epoch."""
        return LocalTraining(
            1, self.batch, SGD(LEARNING_RATE, weight_decay=self.weight_decay), clip=self.clip
        )

    def optimizer(self, module: nn.Module) -> torch.optim.SGD:
        """The same optimizer in plain PyTorch."""
        return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, weight_decay=self.weight_decay)

    def federation(self, device: str) -> Federation:
        """Random images and labels."""
        generator = np.random.default_rng(0)
        count = self.clients * self.samples
        x = generator.standard_normal((count, *self.shape), dtype=np.float32)
        pool = Dataset(x, generator.integers(0, self.classes, count))
        shares = tuple(np.split(np.arange(count), self.clients))
        none = (np.empty(0, dtype=np.int64),) * self.clients
        return Federation(pool, shares, none, None, self.classes).to(device, torch.float32)

    def task(self, device: str) -> Task:
        """A run of FedAvg on this workload."""
        stages = (Stage(fedavg(), 1, self.local()),)
        participation = Participation(per_round=self.per_round)
        return Task(stages, from_module(self.module()), self.federation(device), participation)

    def method_task(self, algorithm: Algorithm, device: str) -> Task:
        """A run of another method, with the network that it needs and SMALL_STEPS."""
        model = algorithm.adapt(from_module(seeded(lambda: algorithm.rebuild(self.module()), 0)))
        stage = Stage(algorithm, 1, replace(self.local(), optimizer=SMALL_STEPS))
        return replace(self.task(device), model=model, stages=(stage,))


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
    "10 clients, all of them, 500 samples of 3×32×32, batch 50 (10 local steps), standard CNN, stacked",
    "standard-cnn", (3, 32, 32), 10, 10, 500, 50, False,
)  # fmt: skip
WORKLOADS = {work.name: work for work in (OVERHEAD, COMPUTE)}  # of the table of engines


def standard(steps: int = 10) -> Workload:
    """The standard CNN with `steps` local steps a round."""
    if steps < 1:
        raise RequestError(f"--steps {steps}: need at least 1.")
    return Workload(
        "standard",
        f"10 clients, all of them, {50 * steps} samples of 3×32×32, batch 50, standard CNN",
        "standard-cnn", (3, 32, 32), 10, 10, 50 * steps, 50, True,
    )  # fmt: skip


PFL_CIFAR10 = Workload(
    "pfl-cifar10",
    "pfl-research's own: 1000 users, 50 a round, 50 samples of 3×32×32, batch 10, "
    "conv 32 – conv 64 – 128 – 10 (1,626,442 parameters), plain SGD",
    "pfl-cnn", (3, 32, 32), 1000, 50, 50, 10, True, weight_decay=0.0, clip=None,
)  # fmt: skip
# The workloads of the table of frameworks:
PEERS = {work.name: work for work in (OVERHEAD, COMPUTE, standard(), PFL_CIFAR10)}
