"""The optimizer steps of a round: of its clients one after another, and of a stack in lockstep."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kedge.core.algorithm import Stage
from kedge.data.batches import step_counts
from kedge.data.federation import Federation


@dataclass(frozen=True)
class Steps:
    """Optimizer steps of a round, in expectation over the sampled clients."""

    total: float  # of all clients of the round
    lockstep: float  # of a stack, in which every chunk runs until its longest client is done
    idle: float  # steps of the stack's rows divided by steps of its clients


def steps_of_round(federation: Federation, stage: Stage, per_round: int, chunk: int) -> Steps:
    """The steps of a round with `per_round` clients, in chunks of `chunk` clients."""
    steps = client_steps(federation, stage)
    full_chunks, last_size = divmod(per_round, chunk)
    chunks = [(full_chunks, chunk), (1, last_size)]  # number of chunks, clients of each
    longest = [(number, size, expected_longest(steps, size)) for number, size in chunks if number * size]
    total = float(steps.mean() * per_round)
    row_steps = sum(number * size * length for number, size, length in longest)
    lockstep = sum(number * length for number, _, length in longest)
    return Steps(total, lockstep, row_steps / max(total, 1.0))


def client_steps(federation: Federation, stage: Stage) -> NDArray[np.int64]:
    """The optimizer steps of every client: [clients]."""
    sizes = np.array([len(samples) for samples in federation.clients])
    steps: NDArray[np.int64] = stage.local.epochs * step_counts(sizes, stage.local)[1]
    return steps


def expected_longest(steps: NDArray[np.int64], count: int) -> float:
    """The expected maximum of `count` values drawn from `steps` without replacement (at most all).

    The k-th smallest of n values is the maximum with probability C(k − 1, count − 1) / C(n, count).
    """
    ordered = np.sort(steps)
    count = min(count, len(ordered))
    chance, expected = count / len(ordered), 0.0
    for k in range(len(ordered), count - 1, -1):
        expected += chance * float(ordered[k - 1])
        chance *= (k - count) / (k - 1) if k > 1 else 0.0
    return expected
