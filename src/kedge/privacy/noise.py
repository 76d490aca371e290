"""Standard normal noise for the leaves of a model: a function of the run's key in a simulation.

The numbers are drawn on the host in float64. They depend on seed, round, leaf and position, and not on the
engine, the device, the chunk or the participants. A federation of real clients must pass other noise to
`release`, drawn from the system's entropy, because this noise can be computed from the seed and subtracted.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kedge.core.random import Purpose, normals
from kedge.core.tree import Leaves

# (leaves, part) -> a standard normal number for each entry; parts 0, 1, … of a round are independent.
Noise = Callable[[Leaves, int], Leaves]
BLOCK = (
    1 << 16
)  # numbers drawn in one call, so that they fit into the cache; the result does not depend on it


def keyed_noise(seed: int, round: int) -> Noise:
    """The noise of a round as a function of the run's seed."""

    def noise(leaves: Leaves, part: int) -> Leaves:
        return {
            name: keyed_normals(leaves[name], seed, round, number, part)
            for number, name in enumerate(sorted(leaves))
        }

    return noise


def keyed_normals(like: Tensor, seed: int, round: int, leaf: int, part: int) -> Tensor:
    """Standard normal numbers with the shape, dtype and device of `like`, the leaf with number `leaf`."""
    count = like.numel()
    drawn = np.empty(count)
    for first in range(0, count, BLOCK):
        position = np.arange(first, min(first + BLOCK, count))
        drawn[position] = normals(
            seed, Purpose.PRIVACY, round=round, client=leaf, step=part, position=position
        )
    return torch.from_numpy(drawn).to(like.dtype).to(like.device).reshape(like.shape)
