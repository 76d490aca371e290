"""Oracles vanilla_anti_schedule and, of fedbug_update, the schedules FedBug is compared with."""

import numpy as np

from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.specification import ORACLES
from kedge.core.algorithm import LocalTraining
from kedge.core.schedules import Mask, Schedule
from kedge.data.batches import PlanSettings, RoundNumbers, plan


def mask_in(schedule: Schedule, units: int, round: int) -> Mask:
    """The units that train in `round`, counted from 1, taken from the round's plan."""
    settings = PlanSettings(LocalTraining(batch=1), schedule, units)
    return plan([np.arange(1)], [0], settings, RoundNumbers(0, round - 1, round - 1)).masks[0]


def open_base_units(schedule: Schedule, key: str) -> Finding:
    """The base units that train in the oracle's rounds. The head, unit 4, always trains."""
    pairs = []
    for when, expected_values in ORACLES["vanilla_anti_schedule"]["expected"].items():
        round = int(when.removeprefix("t="))
        for unit, opened in enumerate(mask_in(schedule, 4, round), 1):
            expected = float(unit in expected_values[key] or unit == 4)
            pairs.append(Pair(f"round {round}, unit {unit} trains", expected, float(opened)))
    return compare_numbers(pairs, 0.0)


def phase_lengths(schedule: Schedule, lengths: tuple[int, ...]) -> Finding:
    """The numbers of rounds, of the first 300, in which 1, 2 and 3 base units are open.

    The specification, 3.18 (f): t ≥ t_k gives 99, 100 and 101 rounds, t > t_k exactly 100 each.
    """
    opened = [sum(mask_in(schedule, 4, round)) - 1 for round in range(1, 301)]
    pairs = [
        Pair(f"rounds with {n} base units", expected, opened.count(n))
        for n, expected in enumerate(lengths, 1)
    ]
    return compare_numbers(pairs, 0.0)


def last_units_stay_closed(schedule: Schedule, fixed: int) -> Finding:
    """The last `fixed` of five units are closed in every step of a round of 20 steps, the others open."""
    settings = PlanSettings(LocalTraining(batch=1), schedule, 5)
    masks = plan([np.arange(20)], [0], settings, RoundNumbers()).masks
    pairs = [
        Pair(f"step {step}, unit {unit + 1} trains", float(unit < 5 - fixed), float(opened))
        for step, mask in enumerate(masks, 1)
        for unit, opened in enumerate(mask)
    ]
    return compare_numbers(pairs, 0.0)
