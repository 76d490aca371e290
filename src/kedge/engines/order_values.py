"""Values that engines derive from an order and its stage: settings and numbers of a plan, round number."""

import torch
from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.data.batches import PlanSettings, RoundNumbers
from kedge.data.federation import Federation
from kedge.engines.engine import Order


def plan_settings(stage: Stage, model: Model, data: Federation, tuning: bool) -> PlanSettings:
    """The settings of a stage's plans."""
    units, random = len(model.units), model.random
    return PlanSettings(stage.local, stage.algorithm.schedule, units, random, tuning, data.augment)


def numbers_of(order: Order) -> RoundNumbers:
    """The numbers of an order's round."""
    return RoundNumbers(order.seed, order.round, order.stage_round)


def round_number(order: Order) -> Tensor:
    """The number of the round as a tensor: a compiled program serves every round."""
    device = next(iter(order.shared.values())).device
    return torch.full((), order.round, dtype=torch.int64, device=device)
