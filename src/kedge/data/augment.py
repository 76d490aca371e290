"""Augmentation: the host draws flips and shifts of images, the device applies them inside the step.

"flip" mirrors the normalized image horizontally with probability ½. "flip-crop" also, with probability ½,
pads 4 zeros on every side and crops at an offset from 0 to 8 in each axis (as FedDyn's code and its
successors). A draw is a function of (seed, round, client, step, position in the batch), so all engines make
the same draws.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.random import Purpose, bits

Augment = Literal["none", "flip", "flip-crop"]
PAD = 4


def draw_moves(  # noqa: PLR0913  # the counters of the random draws
    augment: Augment,
    seed: int,
    round: int,
    clients: NDArray[np.int64],
    step: NDArray[np.int64],
    width: int,
    tuning: bool,
) -> NDArray[np.int64]:
    """Draw flip (0 or 1) and two offsets per sample: [steps, clients, width, 3]; [..., 0] for "none"."""
    if augment == "none":
        return np.empty((*step.shape, width, 0), dtype=np.int64)
    drawn = bits(
        seed,
        Purpose.TUNE_AUGMENT if tuning else Purpose.AUGMENT,
        round=round,
        client=clients[:, None],
        step=step[..., None],
        position=np.arange(width),
    )
    flip = drawn & np.uint64(1)
    crop = (drawn >> np.uint64(1)) & np.uint64(1) if augment == "flip-crop" else np.zeros_like(drawn)
    offsets = [
        np.where(crop == 1, (((drawn >> np.uint64(shift)) & np.uint64(0xFFFFFF)) * (2 * PAD + 1)) >> 24, PAD)
        for shift in (8, 32)
    ]
    return np.stack([flip, *offsets], axis=-1).astype(np.int64)


def augmented(x: Tensor, moves: Tensor) -> Tensor:
    """Images [..., channels, height, width], flipped and shifted by `moves` [..., 3]; the border is zeros."""
    height, width = x.shape[-2:]
    flip, down, right = moves.unbind(-1)
    rows = torch.arange(height, device=x.device) + down[..., None] - PAD  # [..., height]
    columns = torch.arange(width, device=x.device) + right[..., None] - PAD
    row_inside, column_inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    inside = row_inside[..., :, None] & column_inside[..., None, :]
    columns = torch.where(flip[..., None] == 1, width - 1 - columns, columns)
    index = rows.clamp(0, height - 1)[..., :, None] * width + columns.clamp(0, width - 1)[..., None, :]
    flat_index = index.flatten(-2)[..., None, :].expand(*x.shape[:-2], height * width)
    pixels = x.flatten(-2).gather(-1, flat_index).view(x.shape)
    return torch.where(inside[..., None, :, :], pixels, 0)
