"""Called as a script with a number of clients: train them on two workers, and print the memory that it took.

Prints the peak memory of this process and the bytes in the object store after the last round, as multiples of
the model's size.
"""

import re
import resource
import sys

import numpy as np
import torch
from ray._private.internal_api import memory_summary
from torch import nn

from kedge.algorithms import fedavg, scaffold
from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
from kedge.engines.choice.choose import Choice
from kedge.engines.ray.cluster import connected
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.shares import Share
from kedge.engines.ray.worker import WorkerSettings
from kedge.nn.from_module import from_module

INPUTS = 512
ROUNDS = 12  # a snapshot is taken after ten


def main() -> None:
    clients, method = int(sys.argv[1]), scaffold() if sys.argv[2] == "scaffold" else fedavg()
    chance = np.random.default_rng(0)
    samples = [
        Dataset(chance.standard_normal((2, INPUTS), dtype=np.float32), np.array([0, 1]))
        for _ in range(clients)
    ]
    data = federation_from_datasets(samples, None).to("cpu", torch.float32)
    model = from_module(
        nn.Sequential(nn.Linear(INPUTS, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.Linear(512, 2))
    )
    size = 4 * sum(v.numel() for v in model.init(0)[0].values())
    with connected() as cluster:
        engine = RayEngine(cluster, model, data, WorkerSettings(2, Share(1, 0), "cpu", "fp32", 1))
        engine.build(Choice("sequential", False, 0, ""))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        train_rounds(method, LocalTraining(1, 2, SGD(0.01)), engine, model, data, [range(clients)] * ROUNDS)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        summary = memory_summary(cluster.ray.get_runtime_context().gcs_address, stats_only=True)
        stored = float(re.search(r"Plasma memory usage (\d+) MiB", summary)[1]) * 2**20  # type: ignore[index]
        engine.close()
    print(f"{peak / size:.1f} {stored / size:.1f} {size / 1e6:.1f}")


if __name__ == "__main__":
    main()
