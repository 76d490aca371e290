"""Poisson sampling from the system's entropy: the participants of a round of a private federation.

The accountant's amplification holds only if the participants are secret. A simulation draws them from the
seed; in a federation all clients know the seed.
"""

import os

import numpy as np

from kedge.core.sampling import Participation

BITS = 53  # of a uniform number


def secret_sample(participation: Participation, population: int) -> list[int]:
    """The clients of a round, each by a draw of its own; another call draws again."""
    bits = np.frombuffer(os.urandom(8 * population), dtype=np.uint64) >> np.uint64(64 - BITS)
    uniform = bits * 2.0**-BITS  # in [0, 1), exact
    return [int(c) for c in np.flatnonzero(uniform < participation.probability(population))]
