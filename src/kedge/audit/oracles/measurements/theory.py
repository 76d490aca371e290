"""Oracles linear_two_layer_* and linear_m_clients of the specification: the linear laboratory.

Gradient descent runs twice: by the laboratory's formulas, and by kedge's engines (linear_bed.py).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.audit.check import Entries
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.measurements.linear_bed import next_rounds
from kedge.audit.specification import ORACLES
from kedge.measure.theory.contraction import mean_cosine, paper_minimum, paper_ratio, predicted_ratio
from kedge.measure.theory.linear import (
    ADDITIVE,
    MULTIPLICATIVE,
    NEVER,
    Network,
    Point,
    Training,
    discrepancy,
    gradient_flow,
    next_round,
)

FLOW: dict[str, Any] = ORACLES["linear_two_layer_flow"]
DESCENT: dict[str, Any] = ORACLES["linear_two_layer_gd_one_round"]
NEAR: dict[str, Any] = ORACLES["linear_two_layer_theory_near_minimum"]
MANY: dict[str, Any] = ORACLES["linear_m_clients"]
PRINTED = "printed_formula_with_extra_1/2"
FROZEN = {"fedavg": 0, "fedbug_1_frozen_step": 1, "fedbug_P0.4 (10 of 50 frozen)": 10, "fedbabu": NEVER}
Minimum = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def point(n: Sequence[float], v: float) -> Point:
    """The numbers n and v of one network."""
    return Point(torch.tensor(n, dtype=torch.float64), torch.tensor(v, dtype=torch.float64))


def two_clients(given: dict[str, Any]) -> Point:
    """The start of an oracle with two clients."""
    return point([given["a"], given["b"]], given["v"])


def ratio(before: Point, after: Point) -> float:
    """r: the discrepancy d of the next round, divided by d."""
    return float(discrepancy(after.n) / discrepancy(before.n))


def flow(network: Network) -> Finding:
    """The limits of gradient flow, at av = 1 and with a constant a² − v², and the next round."""
    start, expected = two_clients(FLOW["inputs"]), FLOW["expected"]
    training = Training(flow=True)
    n, v = gradient_flow(network, start, training)
    after = next_round(network, start, training)
    names = ("a_inf", "b_inf", "v_inf_client1", "v_inf_client2", "a_next", "b_next", "v_next")
    values = [*n.tolist(), *v.tolist(), *after.n.tolist(), float(after.v)]
    pairs = [Pair(name, expected[name], value) for name, value in zip(names, values, strict=True)]
    pairs += [Pair(f"n·v of client {j + 1}", 1.0, float(n[j] * v[j])) for j in range(2)]
    kept, before = n**2 - v**2, start.n**2 - start.v**2
    pairs += [Pair(f"n² − v² of client {j + 1}", float(before[j]), float(kept[j])) for j in range(2)]
    pairs += [
        Pair("d", expected["d"], float(discrepancy(start.n))),
        Pair("d of the next round", expected["d_next"], float(discrepancy(after.n))),
        Pair("r", expected["r"], ratio(start, after)),
    ]
    return compare_numbers(pairs, TOLERANCE)


def flow_as_printed(minimum: Minimum) -> Finding:
    """The paper's printed value, which has a further factor ½ in both numbers: their product is 1/4."""
    start, expected = two_clients(FLOW["inputs"]), FLOW["expected"][PRINTED]
    n, v = minimum(start.n[:1], start.v[None])
    pairs = [
        Pair("a_inf as printed", expected["a_inf"], float(n)),
        Pair("v_inf as printed", expected["v_inf"], float(v)),
        Pair("product as printed", expected["product"], float(n * v)),
        Pair("product as printed, 1/4", 0.25, float(n * v)),
    ]
    return compare_numbers(pairs, TOLERANCE)


def descent(network: Network, gradient: int) -> Finding:
    """One round of FedAvg, FedBug with one and with ten frozen steps, and FedBABU."""
    given = DESCENT["inputs"]
    start, pairs = two_clients(given), []
    for name, frozen in FROZEN.items():
        expected = DESCENT["expected"][f"factor{gradient}:{name}"]
        training = Training(given["lr"], given["K"], frozen, gradient)
        for place, after in next_rounds(network, start, training).items():
            actual = [*after.n.tolist(), float(after.v)]
            each = zip("abv", expected["a,b,v"], actual, strict=True)
            pairs += [Pair(f"{place}, {name}, {letter}", *both) for letter, *both in each]
            pairs.append(Pair(f"{place}, {name}, r", expected["r_empirical"], ratio(start, after)))
    return compare_numbers(pairs, TOLERANCE)


def near_minimum(network: Network, theory: Callable[[Network, Point, Training], Tensor]) -> Finding:
    """Theory and simulation close to av = bv = 1, and the papers' printed r for FedAvg and FedBABU."""
    given, expected = NEAR["inputs"], NEAR["expected"]
    start = two_clients(given)
    trainings = [Training(given["lr"], given["K"], s, given["gradient_factor"]) for s in (0, 1, NEVER)]
    average, bug, babu = trainings
    alone = [mean_cosine(network, Point(start.n[j : j + 1], start.v)) for j in range(2)]
    pairs = [
        Pair("cos²θ of client 1", expected["cos2_theta_client1=a^2/(a^2+v^2)"], float(alone[0])),
        Pair("cos²θ of client 2", expected["cos2_theta_client2"], float(alone[1])),
    ]
    for name, training, key in (
        ("fedavg", average, "r_theory_fedavg=(1+mean cos2)/2"),
        ("fedbug", bug, "r_theory_fedbug_1step=(1+(1-2*lr*v^2)*mean cos2)/2"),
        ("fedbabu, many steps", babu._replace(flow=True), "r_theory_fedbabu"),
    ):
        pairs.append(Pair(f"theory, {name}", expected[key], float(theory(network, start, training))))
    for name, training, key in (
        ("fedavg", average, "r_empirical_fedavg"),
        ("fedbug", bug, "r_empirical_fedbug_1step"),
        ("fedbabu", babu, "r_empirical_fedbabu"),
    ):
        for place, after in next_rounds(network, start, training).items():
            pairs.append(Pair(f"{place}, {name}", expected[key], ratio(start, after)))
    for name, training, key in (
        ("fedavg", average, "r_theory_fedavg=(1+mean cos2)/2"),
        ("fedbabu", babu, "r_theory_fedbabu"),
    ):
        pairs.append(Pair(f"printed, {name}", expected[key], float(paper_ratio(network, start, training))))
    exact = float(theory(network, start, babu))  # for K steps, without the limit of many steps
    pairs.append(Pair("theory, fedbabu, its K steps", expected["r_empirical_fedbabu"], exact))
    return compare_numbers(pairs, TOLERANCE)


def many_clients(
    network: Network, case: str, theory: Callable[[Network, Point, Training], Tensor]
) -> Finding:
    """Four clients: d over ordered pairs, one round, r by simulation and by theory in the minimum."""
    given, expected = MANY[case]["inputs"], MANY[case]["expected"]
    start, m = point(given["n"], given["v"]), len(given["n"])
    training = Training(given["lr"], given["K"], 0, given["gradient_factor"])
    pairs = [Pair("d", expected["d"], float(discrepancy(start.n)))]
    for place, after in next_rounds(network, start, training).items():
        each = enumerate(zip(expected["n_next"], after.n.tolist(), strict=True), 1)
        pairs += [Pair(f"{place}, n of client {j}", *both) for j, both in each]
        pairs.append(Pair(f"{place}, v", expected["v_next"], float(after.v)))
        pairs.append(Pair(f"{place}, r", expected["r_empirical"], ratio(start, after)))
        if "d_next" in expected:
            pairs.append(
                Pair(f"{place}, d of the next round", expected["d_next"], float(discrepancy(after.n)))
            )
    key = next(k for k in expected if k.startswith("r_theory"))
    at = point([1.0] * m, 1.0)  # cos²θ is ½ in both networks
    pairs.append(Pair("theory", expected[key], float(theory(network, at, training))))
    return compare_numbers(pairs, TOLERANCE)


def additive_pair(network: Network) -> Finding:
    """Two clients of the additive model contract by exactly 3/4, and with v frozen by 1/2."""
    start, pairs = point([0.3, 1.7], 0.4), []
    for name, frozen, expected in (("fedavg", 0, 0.75), ("v frozen", NEVER, 0.5)):
        training = Training(steps=200, frozen=frozen)
        pairs += [
            Pair(f"{place}, {name}", expected, ratio(start, after))
            for place, after in next_rounds(network, start, training).items()
        ]
        flowing = training._replace(flow=True)
        pairs.append(Pair(f"flow, {name}", expected, ratio(start, next_round(network, start, flowing))))
        pairs.append(Pair(f"theory, {name}", expected, float(predicted_ratio(network, start, flowing))))
    return compare_numbers(pairs, TOLERANCE)


def oracle_checks() -> Entries:
    """Comparisons of the linear laboratory with the specification's numbers."""
    both = {"multiplicative": MULTIPLICATIVE, "additive_bias (appendix model)": ADDITIVE}
    rows: Entries = [
        ("theory", "two clients, gradient flow", partial(flow, MULTIPLICATIVE)),
        ("theory", "the paper's printed value, product 1/4", partial(flow_as_printed, paper_minimum)),
        ("theory", "two clients, descent, gradient as printed", partial(descent, MULTIPLICATIVE, 1)),
        ("theory", "two clients, descent, true gradient", partial(descent, MULTIPLICATIVE, 2)),
        ("theory", "two clients near the minimum", partial(near_minimum, MULTIPLICATIVE, predicted_ratio)),
        ("theory", "two clients, additive", partial(additive_pair, ADDITIVE)),
    ]
    rows += [
        ("theory", f"four clients, {network.name}", partial(many_clients, network, case, predicted_ratio))
        for case, network in both.items()
    ]
    return rows
