"""Oracles gradient_diversity and intra_client_cosine of the specification: diagnostics of drift."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kedge.algorithms import fedavg
from kedge.audit.bed import quadratic_bed
from kedge.audit.check import Entries
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.measure.drift import gradient_diversity, intra_client_cosine, mean_over_clients
from kedge.measure.updates import Updates
from kedge.running.runner import run

GROUP = "drift"


def vector(values: list[float]) -> Leaves:
    """A list of numbers as leaves."""
    return {"w": torch.tensor(values, dtype=torch.float64)}


def or_nan(value: float | None) -> float:
    """The value, or NaN instead of None."""
    return float("nan") if value is None else value


def diversity(factor: float = 1.0) -> Finding:
    """Σ‖v_k‖² / ‖Σ v_k‖² of v_k = factor · g_k, which does not depend on the factor."""
    pairs = [
        Pair(
            f"case {n}",
            case["expected"],
            or_nan(gradient_diversity([vector([factor * x for x in g]) for g in case["g"]])),
        )
        for n, case in enumerate(ORACLES["gradient_diversity"]["cases"], 1)
    ]
    return compare_numbers(pairs, 1e-12)


def diversity_in_history(engine: str) -> Finding:
    """The same numbers in the history of a run, for clients of different sizes.

    The update of a client is g_k: one step from w = 0 with learning rate 1 on ½‖w − g_k‖².
    """
    pairs = []
    for n, case in enumerate(ORACLES["gradient_diversity"]["cases"], 1):
        vectors = case["g"]
        bed = quadratic_bed({"w": [0.0, 0.0]}, [(1.0, *g) for g in vectors], range(1, 1 + len(vectors)))
        updates = Updates((("unit0", ("w",)),))
        algorithm = replace(fedavg(), loss=bed.loss, corrections=(updates,))
        task = Task((Stage(algorithm, 1, LocalTraining(1, 1000, SGD(1.0))),), bed.model, bed.federation)
        line = run(task, ENGINES[engine](bed.model, bed.federation)).history[0]
        for name in ("drift.diversity", "drift.diversity.unit0"):
            pairs.append(Pair(f"case {n}, {name}", case["expected"], or_nan(line[name])))
    return compare_numbers(pairs, 1e-12)


def cosines() -> Finding:
    """Cosines of the last update with earlier updates; clients with zero updates are not in the mean."""
    oracle: dict[str, Any] = ORACLES["intra_client_cosine"]
    updates = [vector(g) for g in oracle["inputs"]["pseudo_gradients_of_one_client_rounds_0_1_2"]]
    zero_updates = [vector([0.0, 0.0])] * len(updates)
    expected = oracle["expected"]["similarity_of_last_round_to_rounds_0_1"]
    found = {
        "one client": intra_client_cosine(updates),
        "mean with a client of zero updates": mean_over_clients(
            [intra_client_cosine(updates), intra_client_cosine(zero_updates)]
        ),
    }
    pairs = [
        Pair(f"{name}, round {t}", e, or_nan(g))
        for name, actual in found.items()
        for t, (e, g) in enumerate(zip(expected, actual, strict=True))
    ]
    return compare_numbers(pairs, 1e-12)


def oracle_checks() -> Entries:
    """Comparisons of drift diagnostics with the specification's numbers."""
    return [
        (GROUP, "gradient diversity", diversity),
        (GROUP, "diversity of local drifts −0.01·u", partial(diversity, -0.01)),
        *(
            (GROUP, f"diversity in a round, {engine}", partial(diversity_in_history, engine))
            for engine in ENGINES
        ),
        (GROUP, "cosine across rounds", cosines),
    ]
