"""Memory: it does not grow with rounds, and grows with the clients of a round, not with all clients."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np, torch
from kedge.algorithms import fedavg, fedprox, feddyn
from kedge.core.algorithm import LocalTraining, Stage
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.models import MODELS
from kedge.nn.from_module import from_module
from kedge.running.runner import run
from kedge.config.task import Task
from kedge.core.sampling import Participation

clients, rounds, method, engine = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
samples = 8000
x = np.random.default_rng(0).standard_normal((samples, 64), dtype=np.float32)
pool = Dataset(x, np.arange(samples) % 10)
shares = tuple(np.array_split(np.arange(samples), clients))
data = Federation(pool, shares, (np.empty(0, np.int64),) * clients, None, 10)
model = from_module(MODELS["mlp"]((64,), 10, hidden=(1024,)))  # 0.3 MB a model
algorithm = {"fedavg": fedavg(), "fedprox": fedprox(), "feddyn": feddyn()}[method]
stage = Stage(algorithm, rounds, LocalTraining(1, 8))
task = Task((stage,), model, data, Participation(per_round=4))
place = {"stacked": Stacked, "sequential": Sequential}[engine](model, data)
run(task, place)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(place.memories.by_client))
"""


def peak(clients: int, rounds: int, method: str = "fedavg", engine: str = "stacked") -> tuple[float, int]:
    """Peak memory in MB, and how many clients have a memory."""
    words = [sys.executable, "-c", SCRIPT, str(clients), str(rounds), method, engine]
    out = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    megabytes, rows = out.stdout.split()
    return float(megabytes), int(rows)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_memory_grows_neither_with_rounds_nor_with_all_clients(engine: str) -> None:
    """A model is 0.3 MB: one for each of 800 clients would take 240 MB, for each of 400 rounds 120 MB."""
    base, rows = peak(100, 10, "fedprox", engine)
    assert rows == 0
    assert peak(100, 400, engine=engine)[0] < base + 20
    assert peak(800, 400, engine=engine)[0] < base + 20


@pytest.mark.slow
def test_only_clients_that_were_seen_have_a_memory() -> None:
    assert peak(800, 5, "feddyn")[1] <= 20
