"""Features and unit outputs of a model in evaluation mode."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from kedge.core.model import Batch, Model
from kedge.core.tree import Leaves

Prepare = Callable[[Tensor], Tensor]


@torch.no_grad()
def model_features(
    model: Model, params: Leaves, buffers: Leaves, x: Tensor, prepare: Prepare, chunk: int = 1000
) -> Tensor:
    """The classifier's inputs, [samples, d], on the CPU; logits if the model has no classifier."""
    features = [
        model.apply(params, buffers, unlabeled_batch(prepare(inputs)), False)[0].features
        for inputs in torch.split(x, chunk)
    ]
    return torch.cat([part.cpu() for part in features])


@torch.no_grad()
def unit_outputs(
    model: Model,
    params: Leaves,
    buffers: Leaves,
    x: Tensor,
    prepare: Prepare,
    transform: Callable[[Tensor], Tensor] = torch.clone,
) -> dict[int, Tensor]:
    """The output of each unit's last layer with parameters, after `transform`, by unit number.

    Layers are recognized by the identity of their tensors in `params`. A unit is missing if the network does
    not call its layers as modules.
    """
    unit_of = {id(params[k]): number for number, leaves in enumerate(model.units) for k in leaves}
    outputs: dict[int, Tensor] = {}

    def save_output(module: nn.Module, inputs: Any, output: Any) -> None:
        units = {unit_of[id(p)] for p in module._parameters.values() if id(p) in unit_of}
        if units and isinstance(output, Tensor):
            outputs[max(units)] = transform(output)  # now: a later layer may modify it in place

    handle = register_module_forward_hook(save_output)
    try:
        model.apply(params, buffers, unlabeled_batch(prepare(x)), False)
    finally:
        handle.remove()
    return {number: outputs[number] for number in sorted(outputs)}


def unlabeled_batch(x: Tensor) -> Batch:
    """A batch of weight 1 per sample and label 0."""
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    weight = torch.ones(len(x), dtype=x.dtype, device=x.device)
    return Batch(x, labels, weight, torch.zeros(2, dtype=torch.int64, device=x.device))
