"""The share of a cluster's CPU cores and GPUs that each worker gets.

Ray places a worker on one machine, and a worker with a part of a GPU on one GPU. So a share is computed from
each machine, not from their sum: all workers must fit side by side.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kedge.core.errors import RequestError

STEPS = 10_000  # Ray counts resources in ten-thousandths


class Machine(NamedTuple):
    """The resources of one machine of a cluster."""

    cpus: float
    gpus: int


class Share(NamedTuple):
    """The resources of one worker."""

    cpus: float
    gpus: float


def worker_share(machines: Sequence[Machine], workers: int, on_gpus: bool) -> Share:
    """The largest share with which `workers` workers fit on these machines.

    A worker trains on at most one GPU. If there are more workers than GPUs, several workers share a GPU.
    """
    return gpu_share(machines, workers) if on_gpus else Share(cpu_share(machines, workers), 0.0)


def gpu_share(machines: Sequence[Machine], workers: int) -> Share:
    """One GPU for each worker, or the same part of one, with the cores of its machine divided evenly."""
    count = sum(machine.gpus for machine in machines)
    if not count:
        raise RequestError(
            "the workers of this run train on GPUs, and the cluster has none. Name a cluster with GPUs "
            "(--address), or start a new run with --device cpu."
        )
    per_gpu = math.ceil(workers / count)
    placed = [(machine, min(workers, machine.gpus * per_gpu)) for machine in machines if machine.gpus]
    cpus = min(machine.cpus / most for machine, most in placed)
    return Share(rounded_down(cpus), rounded_down(1 / per_gpu))


def cpu_share(machines: Sequence[Machine], workers: int) -> float:
    """The most cores for each worker with which all of them fit."""
    candidates = {machine.cpus / count for machine in machines for count in range(1, workers + 1)}
    fitting = [
        share
        for share in map(rounded_down, candidates)
        if share and sum(math.floor(machine.cpus / share + 1e-9) for machine in machines) >= workers
    ]
    return max(fitting, default=0.0)


def rounded_down(share: float) -> float:
    """The share in Ray's steps, rounded down, because rounded up the workers would not fit."""
    return math.floor(share * STEPS + 1e-6) / STEPS
