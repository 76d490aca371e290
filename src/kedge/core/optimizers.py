"""SGD and Adam as pure functions, with the semantics of torch.optim.

Only leaves with a gradient change: a frozen leaf gets no step, no weight decay and no momentum. Every round
starts with a new optimizer state. The learning rate of a round is lr · decay^round.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import Tensor

from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, zeros

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(gt=0, le=1, description="the factor per round")]


class Optimizer(Protocol):
    """The part of an optimizer that the training kernel calls."""

    @property
    def momentum(self) -> float: ...
    def rate(self, round: int) -> float: ...
    def init(self, params: Leaves) -> dict[str, Any]: ...
    def update(
        self, grads: Leaves, unclipped: Leaves, state: Tree, params: Leaves, lr: Tensor
    ) -> tuple[Leaves, Tree]: ...


@checked
@dataclass(frozen=True)
class SGD:
    """w ← w − lr·v with v = momentum·v + g + weight_decay·w (torch.optim.SGD)."""

    lr: Positive = 0.1
    momentum: Momentum = 0.0
    weight_decay: NotNegative = 0.0
    decay: Decay = 1.0

    def rate(self, round: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.lr * self.decay**round

    def init(self, params: Leaves) -> dict[str, Any]:
        """Momentum buffers; nothing if momentum is 0."""
        return {"momentum": zeros(params)} if self.momentum else {}

    def update(
        self, grads: Leaves, unclipped: Leaves, state: Tree, params: Leaves, lr: Tensor
    ) -> tuple[Leaves, Tree]:
        """The parameters and the state after one step; `unclipped` is added to `grads` with weight decay."""
        step = full_gradient(grads, unclipped, params, self.weight_decay)
        if self.momentum:
            velocity = state["momentum"]
            step = {k: self.momentum * velocity[k] + g for k, g in step.items()}
            state = {"momentum": {**velocity, **step}}
        return {**params, **{k: torch.addcmul(params[k], lr, g, value=-1) for k, g in step.items()}}, state


@checked
@dataclass(frozen=True)
class Adam:
    """torch.optim.Adam; the bias correction of a leaf counts only the steps in which the leaf trained."""

    lr: Positive = 1e-3
    beta1: Momentum = 0.9
    beta2: Momentum = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    decay: Decay = 1.0

    @property
    def momentum(self) -> float:
        """The weight of earlier gradients in a step."""
        return self.beta1

    def rate(self, round: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.lr * self.decay**round

    def init(self, params: Leaves) -> dict[str, Any]:
        """First and second moments and the number of steps, per leaf."""
        return {
            "first": zeros(params),
            "second": zeros(params),
            "steps": {k: torch.zeros((), device=v.device, dtype=v.dtype) for k, v in params.items()},
        }

    def update(
        self, grads: Leaves, unclipped: Leaves, state: Tree, params: Leaves, lr: Tensor
    ) -> tuple[Leaves, Tree]:
        """The parameters and the state after one step; `unclipped` is added to `grads` with weight decay."""
        new_params, first, second, steps = (
            dict(params),
            dict(state["first"]),
            dict(state["second"]),
            dict(state["steps"]),
        )
        for k, g in full_gradient(grads, unclipped, params, self.weight_decay).items():
            steps[k] = steps[k] + 1
            first[k] = self.beta1 * first[k] + (1 - self.beta1) * g
            second[k] = self.beta2 * second[k] + (1 - self.beta2) * g * g
            denominator = (second[k] / (1 - self.beta2 ** steps[k])).sqrt() + self.eps
            new_params[k] = params[k] - lr * (first[k] / (1 - self.beta1 ** steps[k])) / denominator
        return new_params, {"first": first, "second": second, "steps": steps}


def full_gradient(grads: Leaves, unclipped: Leaves, params: Leaves, weight_decay: float) -> Leaves:
    """g + weight_decay·w + unclipped, for the leaves with a gradient."""
    if weight_decay:
        grads = {k: torch.add(g, params[k], alpha=weight_decay) for k, g in grads.items()}
    return {k: g + unclipped[k] if k in unclipped else g for k, g in grads.items()}
