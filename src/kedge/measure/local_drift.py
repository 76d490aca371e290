"""Local drift: diversity and norm of the drift vectors stored by ALL clients, however old.

`Correction.drift` defines a client's drift vector: FedDyn's g_k, SCAFFOLD's c_k. Their diversity
Σ‖g_k‖² / ‖Σ g_k‖² grows without bound as FedDyn drives the sum to zero. Clients that never took part have
g_k = 0 and do not change the sums.

    drift.local.diversity     drift.local.norm: the mean of ‖g_k‖

Both are also measured per unit. If several corrections of a method define a drift, the first one is used.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kedge.core.algorithm import Algorithm
from kedge.core.client import overrides
from kedge.core.correction import Correction
from kedge.core.tree import Leaves, Tree, add
from kedge.measure.drift import diversity, number_or_none


def drift_correction(algorithm: Algorithm) -> Correction | None:
    """The first correction of the algorithm that defines a drift, or None."""
    return next((c for c in algorithm.corrections if overrides(c, "drift")), None)


def local_drift(
    correction: Correction, memories: Tree, facts: Leaves, units: Sequence[tuple[str, tuple[str, ...]]]
) -> dict[str, float | None]:
    """Diversity and mean norm of the drift vectors in `memories`, by client; {} if no client stores one."""
    total: Leaves = {}
    squares: list[Leaves] = []
    for client, memory in memories.items():
        slots = memory["slots"]
        if correction.name not in slots:
            continue
        drift = correction.drift(slots[correction.name], {k: v[int(client)] for k, v in facts.items()})
        total = add(drift, total) if total else drift
        squares.append({k: (v * v).sum().double() for k, v in drift.items()})
    if not squares:
        return {}
    total_square = {k: (v * v).sum().double() for k, v in total.items()}
    parts = {
        "": tuple(total),
        **{f".{name}": tuple(k for k in leaves if k in total) for name, leaves in units},
    }
    metrics: dict[str, float | None] = {}
    for name, leaves in parts.items():
        if leaves:
            by_client = torch.stack([leaf_sum(square, leaves) for square in squares])
            # diversity() takes means and a count; sums and a count of 1 give the same.
            ratio = diversity(by_client.sum(), leaf_sum(total_square, leaves), 1)
            metrics[f"drift.local.diversity{name}"] = number_or_none(ratio)
            metrics[f"drift.local.norm{name}"] = float(by_client.sqrt().mean())
    return metrics


def leaf_sum(by_leaf: Mapping[str, Tensor], leaves: Sequence[str]) -> Tensor:
    """The sum of one number per leaf over `leaves`, sorted by name: a loaded tree may have another order."""
    return torch.stack([by_leaf[k] for k in sorted(leaves)]).sum()
