"""Oracles fedbug_schedule and fedbug_update of the specification.

The schedule is taken from the plan of a round, which engines execute; the update from a client's models after
every step of the kernel.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from kedge.audit.bed import Bed
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.recorded_run import record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD
from kedge.core.schedules import Schedule
from kedge.data.batches import Plan, PlanSettings, RoundNumbers, plan
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
from kedge.nn.from_module import from_module

Case = tuple[int, float, int]  # units, ratio, steps of a round
ROUNDING_CASE: Case = (5, 0.7, 250)  # in floating point, the second unit opens a step too early


def parse_case(text: str) -> Case:
    """Units, ratio and steps from a key of the oracle, such as M=5,P=0.4,K=20."""
    found = re.fullmatch(r"M=(\d+),P=([\d.]+),K=(\d+)", text)
    assert found is not None
    return int(found[1]), float(found[2]), int(found[3])


CASES: dict[str, Case] = {text: parse_case(text) for text in ORACLES["fedbug_schedule"]["cases"]}


def plan_of_client(schedule: Schedule, units: int, steps: int) -> Plan:
    """The plan of a client that takes `steps` steps."""
    settings = PlanSettings(LocalTraining(batch=1), schedule, units)
    return plan([np.arange(steps)], [0], settings, RoundNumbers())


def open_units(steps: Plan) -> list[int]:
    """The number of units that train in each step; −1 if a later unit trains and an earlier one does not."""
    return [sum(mask) if tuple(sorted(mask, reverse=True)) == mask else -1 for mask in steps.masks]


def compare_sequences(expected: Sequence[int], actual: Sequence[int]) -> Finding:
    """Compare the numbers of open units step by step."""
    both = enumerate(zip(expected, actual, strict=True), 1)
    return compare_numbers([Pair(f"units open in step {step}", *pair) for step, pair in both], 0.0)


def schedule_case(schedule: Schedule, case: str) -> Finding:
    """The step in which each unit first trains, and the number of steps in which it trains."""
    units, _, steps = CASES[case]
    expected = ORACLES["fedbug_schedule"]["cases"][case]
    client_plan = plan_of_client(schedule, units, steps)
    masks = np.array(client_plan.masks)
    first = expected["first_iteration_each_module_is_trainable_paper (1-based)"]
    pairs = [
        Pair(f"unit {u + 1} opens in step", k, int(masks[:, u].argmax()) + 1) for u, k in enumerate(first)
    ]
    trained = expected["module_iterations_trained_paper"]
    pairs += [
        Pair(f"unit {u + 1} trains for", k, int(client_plan.trained[0, u])) for u, k in enumerate(trained)
    ]
    return compare_numbers(pairs, 0.0)


def schedule_sequence(schedule: Schedule) -> Finding:
    """The number of open units in every step, for five units, ratio 0.4 and twenty steps."""
    expected: Sequence[int] = ORACLES["fedbug_schedule"]["full_sequence_M5_P0.4_K20"]
    return compare_sequences(expected, open_units(plan_of_client(schedule, 5, 20)))


def schedule_rounding(schedule: Schedule) -> Finding:
    """M = 5, ratio 0.7, K = 250: 35·5/(0.7·250) is exactly 1, so the second unit opens after 35 steps."""
    units, _, steps = ROUNDING_CASE
    expected = [min(units, -(-k // 35)) for k in range(1, steps + 1)]
    return compare_sequences(expected, open_units(plan_of_client(schedule, units, steps)))


class Product(nn.Module):
    """The prediction p·s·x; unit 1 is s, unit 2 is p."""

    units = (("s",), ("p",))

    def __init__(self, s: float, p: float) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.tensor([s], dtype=torch.float64))
        self.p = nn.Parameter(torch.tensor([p], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.p * self.s * x


def squared_error(step: Step) -> Tensor:
    """½ (prediction − y)²."""
    return weighted_mean((step.out.logits[:, 0] - step.batch.y) ** 2 / 2, step.batch)


def update(algorithm: Algorithm, key: str) -> Finding:
    """s and p after every step. A frozen parameter has neither gradient nor weight decay."""
    given = ORACLES["fedbug_update"]["inputs"]
    steps = given["K"]
    data = Dataset(torch.tensor([[given["x"]]], dtype=torch.float64), torch.tensor([given["y"]]))
    bed = Bed(
        from_module(Product(given["s0"], given["p0"])),
        federation_from_datasets([data], None).to("cpu", torch.float64),
        squared_error,
    )
    local = LocalTraining(steps, 1, SGD(given["lr"], weight_decay=given["weight_decay"]))
    pairs = []
    for name, engine in ENGINES.items():
        (state,) = record_rounds(bed, [(algorithm, 1)], local, [[0]], engine, steps=steps)
        for step, values in enumerate(ORACLES["fedbug_update"]["expected"][key]):
            for leaf, value in zip(("s", "p"), values, strict=True):
                actual = float(state.models(0)[leaf][step])
                pairs.append(Pair(f"{name}, {leaf} after step {step + 1}", value, actual))
    return compare_numbers(pairs, TOLERANCE)
