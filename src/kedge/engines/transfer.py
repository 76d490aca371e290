"""Copies from the host to a device that do not make the host wait."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.data.batches import Plan


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of `values` on `device`; the copy to a GPU is asynchronous."""
    return pinned(values, device).to(device, non_blocking=True)


def pinned(values: NDArray[Any], device: torch.device) -> Tensor:
    """A CPU tensor with these values, in pinned memory if `device` is a GPU."""
    return torch.from_numpy(values).pin_memory() if device.type == "cuda" else torch.from_numpy(values)


def step_numbers(plan: Plan, like: Tensor) -> tuple[Tensor, Tensor]:
    """The number of steps, [clients], and of steps in which a unit trains, [clients, units].

    The tensors have the device and dtype of `like`.
    """
    steps, trained = (to_device(v, like.device).to(like.dtype) for v in (plan.steps, plan.trained))
    return steps, trained
