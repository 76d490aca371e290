"""Called with a number of clients and a method: train them on two workers, and print the memory that it took.

Prints, as multiples of the model's size: the largest growth of this process's own memory up to the last
round, up to the end of a checkpoint with all memories, and until a new stage has loaded it; the largest
number of bytes in the object store; and the size of the checkpoint. The last number is the size of the model
in MB. Pages of the store that this process has mapped are counted with the store.
"""

import re
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from ray._private.internal_api import memory_summary
from torch import nn

from kedge.algorithms import fedavg, scaffold
from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
from kedge.engines.choice.choose import Choice
from kedge.engines.ray.cluster import connected
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.shares import Share
from kedge.engines.ray.worker import WorkerSettings
from kedge.nn.from_module import from_module
from kedge.running.folders import checkpoint

INPUTS, WIDTH = 512, 256
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
        nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 512), nn.Linear(512, 2))
    )
    size = 4 * sum(v.numel() for v in model.init(0)[0].values())
    local = LocalTraining(1, 2, SGD(0.01))
    with connected() as cluster, TemporaryDirectory(prefix="kedge-memory-use-", dir=".") as folder:
        engine = RayEngine(cluster, model, data, WorkerSettings(2, Share(1, 0), "cpu", "fp32", 1))
        engine.build(Choice("sequential", False, 0, ""))
        memory = MemoryWatch(cluster.ray.get_runtime_context().gcs_address)
        server = train_rounds(method, local, engine, model, data, [range(clients)] * ROUNDS)
        trained = memory.peak()
        tensors = {"server": server._asdict(), "clients": engine.save()}
        checkpoint.save(Path(folder), ROUNDS, checkpoint.State({"round": ROUNDS}, tensors))
        saved = memory.peak()
        file = next(Path(folder).rglob("tensors.safetensors")).stat().st_size
        state = checkpoint.load(Path(folder), print)
        assert state is not None
        engine.begin(Stage(method, ROUNDS, local), server.shared, frozenset())
        engine.load(state.tensors.get("clients", {}))
        loaded = memory.peak()
        assert len(engine.save()) == len(state.tensors.get("clients", {}))
        memory.end()
        engine.close()
    print(
        *(f"{found / size:.1f}" for found in (trained, saved, loaded, memory.stored, file)),
        f"{size / 1e6:.1f}",
    )


class MemoryWatch:
    """Records the largest memory of this process and of the object store.

    A thread calls `watch`, which measures every 50 ms until `end` is called.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.start = self.most = own_bytes()
        self.stored = 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        """Measure again and again."""
        while not self.ended.wait(0.05):
            self.most = max(self.most, own_bytes())
            summary = memory_summary(self.cluster, stats_only=True)
            found = re.search(r"Plasma memory usage (\d+) MiB", summary)
            self.stored = max(self.stored, float(found[1]) * 2**20 if found else 0)

    def end(self) -> None:
        """End the thread."""
        self.ended.set()
        self.thread.join()

    def peak(self) -> int:
        """The largest growth of this process's own memory so far."""
        return self.most - self.start


def own_bytes() -> int:
    """The memory of this process now, with mapped files, but without pages of the object store."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return 1024 * (int(sizes["RssAnon"]) + int(sizes["RssFile"]))


if __name__ == "__main__":
    main()
