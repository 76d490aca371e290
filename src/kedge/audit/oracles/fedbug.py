"""Oracles fedbug_schedule and fedbug_update of the specification.

The schedule is read off a round's plan, as engines get it; the update off a client's path through the kernel.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from kedge.audit.bed import ORACLES, Bed, moments
from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.problems import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD
from kedge.core.schedules import Schedule
from kedge.data.batches import Plan, plan
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
from kedge.nn.from_module import from_module

TRAP = (5, 0.7, 250)  # floating point opens the second of 5 units in step 35 already


def planned(schedule: Schedule, units: int, steps: int) -> Plan:
    """The plan of a client that takes so many steps."""
    return plan([np.arange(steps)], [0], LocalTraining(batch=1), schedule, units, 0, 0, 0)


def opened(own: Plan) -> list[int]:
    """How many units train in each step; −1 where they are not the first ones."""
    return [sum(mask) if tuple(sorted(mask, reverse=True)) == mask else -1 for mask in own.masks]


def schedule_case(schedule: Schedule, case: str) -> Finding:
    """The step in which each unit first trains, and the steps in which it trains."""
    found = re.fullmatch(r"M=(\d+),P=([\d.]+),K=(\d+)", case)
    assert found is not None
    units, steps = int(found[1]), int(found[3])
    want = ORACLES["fedbug_schedule"]["cases"][case]
    own = planned(schedule, units, steps)
    masks = np.array(own.masks)
    first = want["first_iteration_each_module_is_trainable_paper (1-based)"]
    pairs = [
        Pair(f"unit {u + 1} opens in step", k, int(masks[:, u].argmax()) + 1) for u, k in enumerate(first)
    ]
    trained = want["module_iterations_trained_paper"]
    pairs += [Pair(f"unit {u + 1} trains for", k, int(own.trained[0, u])) for u, k in enumerate(trained)]
    return compared(pairs, 0.0)


def schedule_sequence(schedule: Schedule) -> Finding:
    """The whole sequence for five units, ratio 0.4, twenty steps."""
    want: Sequence[int] = ORACLES["fedbug_schedule"]["full_sequence_M5_P0.4_K20"]
    got = opened(planned(schedule, 5, 20))
    return compared(
        [Pair(f"units open in step {k + 1}", *pair) for k, pair in enumerate(zip(want, got, strict=True))],
        0.0,
    )


def schedule_trap(schedule: Schedule) -> Finding:
    """M = 5, ratio 0.7, K = 250: 35·5/(0.7·250) is exactly 1; a unit opens 35 steps after the one before."""
    got = opened(planned(schedule, TRAP[0], TRAP[2]))
    want = [min(5, -(-k // 35)) for k in range(1, 251)]
    return compared(
        [Pair(f"units open in step {k + 1}", *pair) for k, pair in enumerate(zip(want, got, strict=True))],
        0.0,
    )


class Product(nn.Module):
    """The prediction p·s·x; unit 1 is s, unit 2 is p."""

    units = (("s",), ("p",))

    def __init__(self, s: float, p: float) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.tensor([s], dtype=torch.float64))
        self.p = nn.Parameter(torch.tensor([p], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.p * self.s * x


def squared(step: Step) -> Tensor:
    """½ (prediction − y)²."""
    return weighted_mean((step.out.logits[:, 0] - step.batch.y) ** 2 / 2, step.batch)


def update(algorithm: Algorithm, key: str) -> Finding:
    """s and p after every step; a frozen one gets neither gradient nor weight decay."""
    given = ORACLES["fedbug_update"]["inputs"]
    steps = given["K"]
    data = Dataset(torch.tensor([[given["x"]]], dtype=torch.float64), torch.tensor([given["y"]]))
    bed = Bed(
        from_module(Product(given["s0"], given["p0"])),
        federation_from_datasets([data], None).to("cpu", torch.float64),
        squared,
    )
    local = LocalTraining(steps, 1, SGD(given["lr"], weight_decay=given["weight_decay"]))
    pairs = []
    for name, engine in ENGINES.items():
        (moment,) = moments(bed, [(algorithm, 1)], local, [[0]], engine, watch=steps)
        for step, values in enumerate(ORACLES["fedbug_update"]["expected"][key]):
            for leaf, value in zip(("s", "p"), values, strict=True):
                got = float(moment.path(0)[leaf][step])
                pairs.append(Pair(f"{name}, {leaf} after step {step + 1}", value, got))
    return compared(pairs, TOLERANCE)
