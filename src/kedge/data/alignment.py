"""Align the steps of several clients, so that all clients that take a step together train the same units.

Clients with different numbers of steps are aligned by phase of the schedule: consecutive steps with the same
mask.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kedge.core.schedules import Mask

Ints = NDArray[np.int64]
Phase = tuple[Mask, int]  # a mask, and the number of consecutive steps that have it


def align_steps(sequences: Sequence[Sequence[Mask]]) -> tuple[list[Mask], Ints]:
    """Align the clients' sequences of masks; return the mask of each common step, and the clients' own steps.

    The second result is [common steps, clients]: the number of the client's step, or −1 if it takes none. A
    common step has the mask that the fewest clients need again later. If a schedule only opens, or only
    closes, units, each phase occurs once and lasts as long as its longest client.
    """
    if len({tuple(sequence) for sequence in sequences}) == 1:
        step = np.arange(len(sequences[0]), dtype=np.int64)
        return list(sequences[0]), np.repeat(step[:, None], len(sequences), axis=1)
    if len({mask for sequence in sequences for mask in sequence}) == 1:
        lengths = np.array([len(sequence) for sequence in sequences])
        step = np.arange(lengths.max(), dtype=np.int64)[:, None]
        return [sequences[0][0]] * len(step), np.where(step < lengths, step, -1)
    return align_phases([mask_runs(sequence) for sequence in sequences])


def align_phases(phases: Sequence[Sequence[Phase]]) -> tuple[list[Mask], Ints]:
    """Align the phases of clients, as `align_steps` does."""
    remaining = [deque(of_client) for of_client in phases]
    done = [0] * len(phases)  # steps that each client has taken
    masks: list[Mask] = []
    own_steps: list[list[int]] = []
    while any(remaining):
        mask = next_mask([of_client for of_client in remaining if of_client])
        # The steps that each client takes now: a whole phase, or none.
        steps = [of_client[0][1] if of_client and of_client[0][0] == mask else 0 for of_client in remaining]
        for k in range(max(steps)):
            masks.append(mask)
            own_steps.append([n + k if k < count else -1 for n, count in zip(done, steps, strict=True)])
        for client, count in enumerate(steps):
            if count:
                done[client] += count
                remaining[client].popleft()
    return masks, np.array(own_steps, dtype=np.int64)


def next_mask(remaining: Sequence[Sequence[Phase]]) -> Mask:
    """The mask of the next common step, one of the masks that clients need next.

    It is the mask that the fewest clients need later, and if several are equal, the mask that most need next.
    """
    current = [of_client[0][0] for of_client in remaining]

    def cost(mask: Mask) -> tuple[int, int]:
        later = sum(
            now != mask and any(mask == other for other, _ in of_client)
            for now, of_client in zip(current, remaining, strict=True)
        )
        return later, -current.count(mask)

    return min(dict.fromkeys(current), key=cost)


def mask_runs(sequence: Sequence[Mask]) -> list[Phase]:
    """The phases of a mask sequence: runs of equal masks with their lengths."""
    runs: list[Phase] = []
    for mask in sequence:
        if runs and runs[-1][0] == mask:
            runs[-1] = (mask, runs[-1][1] + 1)
        else:
            runs.append((mask, 1))
    return runs
