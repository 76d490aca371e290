"""Oracles of the protocol that all methods share: learning rates, participation, partition of a class."""

import math
import re
from functools import partial

import numpy as np

from kedge.audit.check import Entries
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.specification import ORACLES
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.data.partitions.label_skew import cut_points

ROUNDS = 2000
DEVIATIONS = 5.0


def lr_decay() -> Finding:
    """η_t = η_0·decay^t at the rounds of the papers."""
    expected = ORACLES["lr_decay"]["expected"]
    device, silo = SGD(0.1, decay=0.999), SGD(0.1, decay=0.99)
    actual = {
        "cross_device 0.1*0.999^999": device.rate(999),
        "cross_device at switch 750": device.rate(750),
        "cross_silo 0.1*0.99^299": silo.rate(299),
        "cross_silo at switch 225": silo.rate(225),
    }
    return compare_numbers([Pair(k, expected[k], actual[k]) for k in expected], 1e-15)


def participation(case: str) -> Finding:
    """The mean number of participants |S| if S is not empty, and the share of rounds with one participant.

    They are n·p / (1 − (1−p)ⁿ) and n·p·(1−p)ⁿ⁻¹ / (1 − (1−p)ⁿ). A simulation must be within five standard
    errors. The variance follows from E[|S|²] = (n·p·(1−p) + n²p²) / (1 − (1−p)ⁿ).
    """
    found = re.fullmatch(r"n=(\d+),p=([\d.]+)", case)
    assert found is not None
    n, p = int(found[1]), float(found[2])
    not_empty = 1 - (1 - p) ** n
    mean, single = n * p / not_empty, n * p * (1 - p) ** (n - 1) / not_empty
    oracle = ORACLES["bernoulli_participation"]
    exact = [Pair("formula of the mean", oracle["expected"][case], mean)]
    if case in oracle["prob_exactly_one_client_given_nonempty"]:
        exact.append(
            Pair("formula of one client", oracle["prob_exactly_one_client_given_nonempty"][case], single)
        )
    formulas = compare_numbers(exact, 1e-9)
    rule = Participation("bernoulli", share=p)
    sizes = np.array([len(rule.sample(n, 1, round)) for round in range(ROUNDS)])
    deviation = math.sqrt(((n * p * (1 - p) + (n * p) ** 2) / not_empty - mean**2) / ROUNDS)
    off = abs(sizes.mean() - mean) / deviation
    off_single = abs((sizes == 1).mean() - single) / max(math.sqrt(single * (1 - single) / ROUNDS), 1e-3)
    return Finding(
        passed=formulas.passed and bool(max(off, off_single) <= DEVIATIONS) and bool(sizes.min() >= 1),
        error=formulas.error,
        detail=f"{formulas.detail}; {ROUNDS} rounds: mean {sizes.mean():.3f}, {off:.1f} standard errors off "
        f"(at most {DEVIATIONS:g}), one client in {(sizes == 1).mean():.1%}, expected {single:.1%}",
    )


def dirichlet_cuts() -> Finding:
    """The points at which a class is cut if clients that already have their share get no samples."""
    oracle = ORACLES["partition_per_class_dirichlet"]
    pairs = []
    for number, case in enumerate((oracle, oracle["second_case"])):
        given, target = case["inputs"], case["expected"]
        proportions, sizes = np.array(given["proportions_drawn"]), np.array(given["current_client_sizes"])
        points = cut_points(proportions, sizes, given["N/n"], given["class_size"], True)
        added = np.diff(points, prepend=0, append=given["class_size"])
        for name, expected, actual in (
            ("cut", target["cut_points"], points),
            ("samples added", target["sizes_added"], added),
        ):
            both = zip(expected, actual, strict=True)
            pairs += [Pair(f"case {number + 1}, {name} {i}", e, int(a)) for i, (e, a) in enumerate(both)]
    return compare_numbers(pairs, 0.0)


def oracle_checks() -> Entries:
    """Comparisons of the protocol with the specification's numbers."""
    return [
        ("protocol", "learning-rate decay", lr_decay),
        ("protocol", "per-class dirichlet", dirichlet_cuts),
        *(
            ("protocol", f"participation {case}", partial(participation, case))
            for case in ORACLES["bernoulli_participation"]["expected"]
        ),
    ]
