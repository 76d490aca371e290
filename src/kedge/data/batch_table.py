"""The batches of a round as tensors: one per step, or as one table from which a GPU reads each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.data.augment import Augment

if TYPE_CHECKING:
    from kedge.data.batches import Ints, Plan


class StepBatch(NamedTuple):
    """The batches of one step, one row per client; or of all steps, with a further axis in front."""

    samples: Tensor  # [clients, batch]: indices into the pool
    weight: Tensor  # [clients, batch]: 0 is padding
    alive: Tensor  # [clients]: whether the client has this step
    key: Tensor  # [clients, 2]: random numbers inside the model
    moves: Tensor  # [clients, batch, 3]: flips and shifts of images; [..., 0] without augmentation


def step_batches(plan: Plan, device: torch.device, dtype: torch.dtype) -> StepBatch:
    """The batches of all steps of a plan."""
    index, weight, alive, key, moves = (
        torch.from_numpy(v).to(device) for v in (plan.index, plan.weight, plan.alive, plan.key, plan.moves)
    )
    return StepBatch(index, weight.to(dtype), alive, key, moves)


def write_table(plan: Plan) -> Ints:
    """The batches of all steps as one array, [steps, clients, columns], which `read_step` reads.

    The number of columns is even: a stack may start at any client, and memory is read in 16 bytes.
    """
    steps, clients, _ = plan.index.shape
    moves = plan.moves.reshape(steps, clients, -1)
    parts: list[NDArray[Any]] = [plan.index, plan.weight, plan.alive[..., None], plan.key, moves]
    if sum(part.shape[2] for part in parts) % 2:
        parts.append(np.zeros((steps, clients, 1), np.int64))
    table = np.empty((steps, clients, sum(part.shape[2] for part in parts)), np.int64)
    np.concatenate(parts, axis=-1, out=table, casting="unsafe")
    return table


def read_step(rows: Tensor, augment: Augment, dtype: torch.dtype) -> StepBatch:
    """The batches of one step from its rows of the table, [clients, columns]."""
    moves_per_sample = 0 if augment == "none" else 3
    batch = (rows.shape[1] - 3) // (2 + moves_per_sample)  # index, weight and moves; 3 columns: alive and key
    widths = [batch, batch, 1, 2, moves_per_sample * batch]
    widths.append(rows.shape[1] - sum(widths))
    index, weight, alive, key, moves, _ = torch.split_with_sizes(rows, widths, 1)
    moves = moves.reshape(len(rows), batch, moves_per_sample)
    return StepBatch(index, weight.to(dtype), alive[:, 0] > 0, key, moves)
