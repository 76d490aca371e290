"""What a model makes of samples, in evaluation mode: the features before its classifier, units' outputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from kedge.core.model import Batch, Model
from kedge.core.tree import Leaves

Prepare = Callable[[Tensor], Tensor]


@torch.no_grad()
def features_of(
    model: Model, params: Leaves, buffers: Leaves, x: Tensor, prepare: Prepare, chunk: int = 1000
) -> Tensor:
    """The input of the classifier, [samples, d], on the CPU; the logits where a model has no classifier."""
    parts = [
        model.apply(params, buffers, batch_of(prepare(some)), False)[0].features
        for some in torch.split(x, chunk)
    ]
    return torch.cat([part.cpu() for part in parts])


@torch.no_grad()
def of_units(
    model: Model,
    params: Leaves,
    buffers: Leaves,
    x: Tensor,
    prepare: Prepare,
    look: Callable[[Tensor], Tensor] = torch.clone,
) -> dict[int, Tensor]:
    """What `look` makes of the output of each unit's last layer with parameters, by the unit's number.

    A layer is known by its parameters, which are the tensors given here. Units whose layers the network does
    not call as modules are not there.
    """
    unit = {id(params[k]): number for number, leaves in enumerate(model.units) for k in leaves}
    found: dict[int, Tensor] = {}

    def seen(module: nn.Module, inputs: Any, output: Any) -> None:
        own = {unit[id(p)] for p in module._parameters.values() if id(p) in unit}
        if own and isinstance(output, Tensor):
            found[max(own)] = look(output)  # at once: a later layer may write into it

    handle = register_module_forward_hook(seen)
    try:
        model.apply(params, buffers, batch_of(prepare(x)), False)
    finally:
        handle.remove()
    return {number: found[number] for number in sorted(found)}


def batch_of(x: Tensor) -> Batch:
    """Samples of which all count, without labels."""
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    weight = torch.ones(len(x), dtype=x.dtype, device=x.device)
    return Batch(x, labels, weight, torch.zeros(2, dtype=torch.int64, device=x.device))
