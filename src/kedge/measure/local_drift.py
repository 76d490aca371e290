"""Local drift: what clients' memories say of it, over ALL clients that have one, stale ones included.

A correction says what in a client's memory is its drift (`Correction.drift`): FedDyn's g_k, SCAFFOLD's c_k.
Their diversity Σ‖g_k‖² / ‖Σ g_k‖² grows without bound as FedDyn drives the sum to zero. Clients that never
took part have g_k = 0 and change nothing.

    drift.local.diversity     drift.local.norm: the mean of ‖g_k‖

each also by unit. Where several corrections of a method have a drift, the first is told.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kedge.core.algorithm import Algorithm
from kedge.core.client import overrides
from kedge.core.correction import Correction
from kedge.core.tree import Leaves, Tree, add
from kedge.measure.drift import diversity, value


def drifting(algorithm: Algorithm) -> Correction | None:
    """The correction that says what a client's drift is; None where a method has none."""
    return next((c for c in algorithm.corrections if overrides(c, "drift")), None)


def local_drift(
    own: Correction, memories: Tree, facts: Leaves, units: Sequence[tuple[str, tuple[str, ...]]]
) -> dict[str, float | None]:
    """The numbers of all clients' memories, by client as an engine saves them; {} where nobody has one."""
    known = [(int(client), memory["slots"]) for client, memory in memories.items()]
    total: Leaves = {}
    squares: list[Leaves] = []
    for client, slots in known:
        if own.name not in slots:
            continue
        drift = own.drift(slots[own.name], {k: v[client] for k, v in facts.items()})
        total = add(drift, total) if total else drift
        squares.append({k: (v * v).sum().double() for k, v in drift.items()})
    if not squares:
        return {}
    together = {k: (v * v).sum().double() for k, v in total.items()}
    parts = {
        "": tuple(total),
        **{f".{name}": tuple(k for k in leaves if k in total) for name, leaves in units},
    }
    told: dict[str, float | None] = {}
    for name, leaves in parts.items():
        if leaves:
            each = torch.stack([summed(one, leaves) for one in squares])
            # Of the sums, so that one client's weight is 1: diversity() takes means.
            told[f"drift.local.diversity{name}"] = value(diversity(each.sum(), summed(together, leaves), 1))
            told[f"drift.local.norm{name}"] = float(each.sqrt().mean())
    return told


def summed(by_leaf: Mapping[str, Tensor], leaves: Sequence[str]) -> Tensor:
    """The sum over some leaves of one number a leaf, by name: a loaded tree may have another order."""
    return torch.stack([by_leaf[k] for k in sorted(leaves)]).sum()
