"""Settings of the benchmark of networks: a network, the clients of a round and their local steps."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from kedge.algorithms import fedavg
from kedge.bench.workloads import SMALL_STEPS, Workload
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.sampling import Participation
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.nn.from_module import from_module
from kedge.nn.precision import DTYPES, Precision, in_precision

IMAGES = 50_000  # in the pool of all clients, on a GPU; a CPU has FEW_IMAGES
FEW_IMAGES = 2000
SHAPE = (3, 32, 32)
BATCH = 50
NETWORKS = {"standard-cnn": 10, "resnet18": 100, "resnet20": 10}  # with their numbers of classes


@dataclass(frozen=True)
class Setting:
    """A network, the clients of a round, and the local steps of each."""

    network: str
    clients: int
    steps: int

    def work(self) -> Workload:
        """The setting as a workload."""
        about = f"{self.clients} clients, {self.steps} local steps, batch {BATCH}"
        return Workload(
            self.network, about, self.network, SHAPE, self.clients, self.clients,
            self.steps * BATCH, BATCH, True, NETWORKS[self.network],
        )  # fmt: skip

    def federation(self, device: str) -> Federation:
        """Random uint8 images in one pool, from which each client draws its own."""
        generator = np.random.default_rng(0)
        count = IMAGES if device == "cuda" else FEW_IMAGES
        classes = NETWORKS[self.network]
        x = torch.from_numpy(generator.integers(0, 256, (count, *SHAPE), dtype=np.uint8))
        y = torch.from_numpy(generator.integers(0, classes, count))
        shares = tuple(generator.integers(0, count, self.steps * BATCH) for _ in range(self.clients))
        none = (np.empty(0, dtype=np.int64),) * self.clients
        data = Federation(Dataset(x, y), shares, none, None, classes, scale=1 / 255)
        return data.to(device, torch.float32)

    def task(
        self, data: Federation, precision: Precision, algorithm: Algorithm | None = None, seed: int = 0
    ) -> Task:
        """A run on `data` with SMALL_STEPS; of FedAvg unless another algorithm is given."""
        work = self.work()
        local = replace(work.local(), optimizer=SMALL_STEPS)
        return Task(
            (Stage(algorithm or fedavg(), 1, local),),
            in_precision(from_module(work.module(seed)), precision),
            replace(data, dtype=DTYPES[precision]),
            Participation(per_round=self.clients),
            seed,
            precision=precision,
        )
