"""Time rounds: warm-up, blocks of rounds, and ratios of speeds that were measured in turns."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch

from kedge.bench.rounds import Round

WARM_UP_ROUNDS = 2  # they compile the programs
BLOCK_SECONDS = 0.4  # at least


def ignore(message: str) -> None:
    """Print nothing."""


class Timing(NamedTuple):
    """The settings of a measurement; `say` receives messages about its progress."""

    device: str = "cpu"
    repeats: int = 7  # measurements of each row
    compiled: bool = True  # whether compiled engines are measured
    say: Callable[[str], None] = ignore

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")


def synchronize(device: str) -> None:
    """Wait for the GPU, if the device is one."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def warm_up(round: Round, device: str) -> Round:
    """Train the first WARM_UP_ROUNDS rounds, which compile, and return `round`."""
    for number in range(WARM_UP_ROUNDS):
        round(number)
    synchronize(device)
    return round


def round_seconds(round: Round, number: int, device: str) -> float:
    """Seconds of one round."""
    start = time.perf_counter()
    round(number)
    synchronize(device)
    return time.perf_counter() - start


def block_speed(round: Round, device: str) -> float:
    """Samples per second of consecutive rounds that take at least BLOCK_SECONDS."""
    samples, number = 0, WARM_UP_ROUNDS
    start = time.perf_counter()
    while True:
        samples += round(number)
        number += 1
        synchronize(device)
        seconds = time.perf_counter() - start
        if seconds >= BLOCK_SECONDS:
            return samples / seconds


def median_ratio(speeds: Sequence[float], others: Sequence[float]) -> float | None:
    """The median of the ratios of each turn, or None without a turn.

    A slow moment of the machine affects both speeds of a turn, and their ratio little.
    """
    pairs = list(zip(speeds, others, strict=False))  # a peer that fails has fewer turns
    return median(a / b for a, b in pairs) if pairs else None
