"""Fingerprints of partitions and local tests, which are part of every experiment and must never change.

An intended change is written by: .venv/bin/python tests/golden/partitions.py
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kedge.data.dataset import Dataset, Source
from kedge.data.federation import federate
from kedge.data.local_tests import LocalTests, partitioned_labels
from kedge.data.partitions.partition import (
    Dirichlet,
    DirichletClasses,
    Iid,
    Natural,
    Partition,
    Quantity,
    Shards,
)

FILE = Path(__file__).with_suffix(".json")
Labels = NDArray[np.int64]
CASES: dict[str, tuple[Partition, int]] = {  # and the seed
    "iid": (Iid(7), 1),
    "iid, stratified": (Iid(5, stratified=True), 4),
    "dirichlet": (Dirichlet(5, 0.3), 2),
    "dirichlet, sigma": (Dirichlet(5, 0.3, sigma=0.8), 5),
    "dirichlet-classes": (DirichletClasses(4, 0.5, minimum=5), 3),
    "dirichlet-classes, no cap": (DirichletClasses(4, 0.5, cap=False, minimum=5), 6),
    "shards": (Shards(6, 2), 7),
    "quantity": (Quantity(6, 1.0), 8),
    "natural": (Natural(), 9),
}
LARGE: dict[str, tuple[Partition, int]] = {  # as the protocols have them, on as many labels as CIFAR-10
    "feddyn": (Dirichlet(100, 0.3), 0),
    "pfllib": (DirichletClasses(100, 0.1, minimum=40), 0),
    "fedtr": (DirichletClasses(20, 0.1), 0),
}
LOCAL: dict[str, tuple[LocalTests, float]] = {
    "split": ("split", 0.25),
    "merged": ("merged", 0.25),
    "matched": ("matched", 0.0),
}


def fingerprint(clients: Iterable[Labels]) -> str:
    """The sha256 of all index lists."""
    text = ";".join(",".join(map(str, own.tolist())) for own in clients)
    return hashlib.sha256(text.encode()).hexdigest()


def computed() -> dict[str, dict[str, str]]:
    """The fingerprints that the current program computes."""
    small, large = np.arange(60) % 4, np.repeat(np.arange(10), 5000)
    keys = np.arange(60) * 7 % 11
    x = np.zeros((100, 1), dtype=np.float32)
    source = Source("golden", Dataset(x[:60], small), Dataset(x[60:], np.arange(40) % 4), 4)
    tests = {}
    for name, (local, share) in LOCAL.items():
        clients = Dirichlet(5, 0.3)(partitioned_labels(source, local), 2)
        dealt = federate(source, clients, share, 2, local)
        tests[name] = fingerprint([*dealt.clients, *dealt.local_tests])
    return {
        "partitions": {name: fingerprint(part(small, seed, keys)) for name, (part, seed) in CASES.items()},
        "protocols": {name: fingerprint(part(large, seed)) for name, (part, seed) in LARGE.items()},
        "local tests": tests,
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(computed(), indent=1) + "\n")
