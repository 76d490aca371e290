"""Standard normal noise for the leaves of a model: from the run's key, or from the system's entropy.

A simulation uses `keyed_noise`. Its numbers depend on seed, round, leaf and position, and not on the engine,
the device, the chunk or the participants. They can be computed from the seed and subtracted. A federation of
real clients must therefore pass `system_noise` to `release`, whose numbers nothing can repeat. All numbers
are drawn on the host in float64.
"""

import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.random import Purpose, normals, normals_from_bits
from kedge.core.tree import Leaves

# (leaves, part) -> a standard normal number for each entry; parts 0, 1, … of a round are independent.
Noise = Callable[[Leaves, int], Leaves]
BLOCK = 1 << 16  # numbers drawn in one call, for speed; the result does not depend on it


def keyed_noise(seed: int, round: int) -> Noise:
    """The noise of a round as a function of the run's seed."""

    def noise(leaves: Leaves, part: int) -> Leaves:
        return {
            name: keyed_normals(leaves[name], seed, round, number, part)
            for number, name in enumerate(sorted(leaves))
        }

    return noise


def system_noise(leaves: Leaves, part: int) -> Leaves:
    """Noise from the system's entropy, for a federation; another call returns other numbers."""
    return {name: system_normals(v) for name, v in leaves.items()}


def keyed_normals(like: Tensor, seed: int, round: int, leaf: int, part: int) -> Tensor:
    """Standard normal numbers with the shape, dtype and device of `like`, the leaf with number `leaf`."""
    drawn = np.empty(like.numel())
    for first in range(0, len(drawn), BLOCK):
        position = np.arange(first, min(first + BLOCK, len(drawn)))
        drawn[position] = normals(
            seed, Purpose.PRIVACY, round=round, client=leaf, step=part, position=position
        )
    return shaped_like(drawn, like)


def system_normals(like: Tensor) -> Tensor:
    """Standard normal numbers with the shape, dtype and device of `like`, from the system's entropy."""
    count = like.numel()
    bits = np.frombuffer(os.urandom(16 * count), dtype=np.uint64)
    return shaped_like(normals_from_bits(bits[:count], bits[count:]), like)


def shaped_like(numbers: NDArray[np.float64], like: Tensor) -> Tensor:
    """The numbers as a tensor with the shape, dtype and device of `like`."""
    return torch.from_numpy(numbers).to(like.dtype).to(like.device).reshape(like.shape)
