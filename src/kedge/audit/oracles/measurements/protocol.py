"""Oracles of what all methods share: who takes part, and how a class is dealt out."""

import math
import re

import numpy as np

from kedge.audit.bed import ORACLES
from kedge.audit.finding import Finding, Pair, compared
from kedge.core.sampling import Participation
from kedge.data.partitions.label_skew import cut_points

ROUNDS = 2000
DEVIATIONS = 5.0


def participation(case: str) -> Finding:
    """The mean number of participants, |S| given S not empty, and how often it is one client.

    n·p / (1 − (1−p)ⁿ) and n·p·(1−p)ⁿ⁻¹ / (1 − (1−p)ⁿ); the simulation must come within five standard errors.
    The variance follows from E[|S|²] = (n·p·(1−p) + n²p²) / (1 − (1−p)ⁿ).
    """
    found = re.fullmatch(r"n=(\d+),p=([\d.]+)", case)
    assert found is not None
    n, p = int(found[1]), float(found[2])
    some = 1 - (1 - p) ** n
    mean, one = n * p / some, n * p * (1 - p) ** (n - 1) / some
    oracle = ORACLES["bernoulli_participation"]
    exact = [Pair("formula of the mean", oracle["expected"][case], mean)]
    if case in oracle["prob_exactly_one_client_given_nonempty"]:
        exact.append(
            Pair("formula of one client", oracle["prob_exactly_one_client_given_nonempty"][case], one)
        )
    formulas = compared(exact, 1e-9)
    rule = Participation("bernoulli", share=p)
    sizes = np.array([len(rule.sample(n, 1, round)) for round in range(ROUNDS)])
    deviation = math.sqrt(((n * p * (1 - p) + (n * p) ** 2) / some - mean**2) / ROUNDS)
    off = abs(sizes.mean() - mean) / deviation
    off_one = abs((sizes == 1).mean() - one) / max(math.sqrt(one * (1 - one) / ROUNDS), 1e-3)
    return Finding(
        passed=formulas.passed and bool(max(off, off_one) <= DEVIATIONS) and bool(sizes.min() >= 1),
        error=formulas.error,
        detail=f"{formulas.detail}; {ROUNDS} rounds: mean {sizes.mean():.3f}, {off:.1f} standard errors off "
        f"(at most {DEVIATIONS:g}), one client in {(sizes == 1).mean():.1%}, expected {one:.1%}",
    )


def dirichlet_cut() -> Finding:
    """Where a class is cut when clients that hold their share are passed over."""
    oracle = ORACLES["partition_per_class_dirichlet"]
    pairs = []
    for number, case in enumerate((oracle, oracle["second_case"])):
        given, want = case["inputs"], case["expected"]
        proportions, sizes = np.array(given["proportions_drawn"]), np.array(given["current_client_sizes"])
        points = cut_points(proportions, sizes, given["N/n"], given["class_size"], True)
        added = np.diff(points, prepend=0, append=given["class_size"])
        for what, expected, got in (
            ("cut", want["cut_points"], points),
            ("samples added", want["sizes_added"], added),
        ):
            both = zip(expected, got, strict=True)
            pairs += [Pair(f"case {number + 1}, {what} {i}", e, int(g)) for i, (e, g) in enumerate(both)]
    return compared(pairs, 0.0)
