"""Align the steps of several clients in rows, so that all clients of a row train the same units.

Clients with different numbers of steps are aligned by phase of the schedule: consecutive steps with the same
mask.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kedge.core.schedules import Mask

Ints = NDArray[np.int64]


def align_steps(sequences: Sequence[Sequence[Mask]]) -> tuple[list[Mask], Ints]:
    """Align mask sequences: the mask of every row, and each client's step in every row (−1: none).

    A row takes the mask that the fewest clients need again later. If a schedule only opens, or only closes,
    units, each phase occurs once and lasts as long as its longest client.
    """
    if len({tuple(sequence) for sequence in sequences}) == 1:
        own = np.arange(len(sequences[0]), dtype=np.int64)
        return list(sequences[0]), np.repeat(own[:, None], len(sequences), axis=1)
    if len({mask for sequence in sequences for mask in sequence}) == 1:
        lengths = np.array([len(sequence) for sequence in sequences])
        own = np.arange(lengths.max(), dtype=np.int64)[:, None]
        return [sequences[0][0]] * len(own), np.where(own < lengths, own, -1)

    phases = [mask_runs(sequence) for sequence in sequences]
    at = [0] * len(sequences)  # current phase of each client
    done = [0] * len(sequences)  # steps done by each client
    masks: list[Mask] = []
    rows: list[list[int]] = []
    while any(at[c] < len(phases[c]) for c in range(len(sequences))):
        waiting = [c for c in range(len(sequences)) if at[c] < len(phases[c])]
        now = {c: phases[c][at[c]][0] for c in waiting}

        def returns(mask: Mask, waiting: list[int] = waiting, now: dict[int, Mask] = now) -> tuple[int, int]:
            later = sum(now[c] != mask and mask in {m for m, _ in phases[c][at[c] :]} for c in waiting)
            return later, -sum(now[c] == mask for c in waiting)

        mask = min(dict.fromkeys(now.values()), key=returns)
        members = [c for c in waiting if now[c] == mask]
        for k in range(max(phases[c][at[c]][1] for c in members)):
            masks.append(mask)
            rows.append(
                [
                    done[c] + k if c in members and k < phases[c][at[c]][1] else -1
                    for c in range(len(sequences))
                ]
            )
        for c in members:
            done[c] += phases[c][at[c]][1]
            at[c] += 1
    return masks, np.array(rows, dtype=np.int64)


def mask_runs(sequence: Sequence[Mask]) -> list[tuple[Mask, int]]:
    """Runs of equal masks with their lengths."""
    runs: list[tuple[Mask, int]] = []
    for mask in sequence:
        if runs and runs[-1][0] == mask:
            runs[-1] = (mask, runs[-1][1] + 1)
        else:
            runs.append((mask, 1))
    return runs
