"""Oracles linear_two_layer_* and linear_m_clients of the specification: the linear laboratory.

Gradient descent is done twice: by the laboratory's stacked formulas, and by kedge's kernel, engines,
schedules and server on a network of m + 1 numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.fedbabu import fedbabu
from kedge.algorithms.fedbug import BottomUp
from kedge.audit.bed import ORACLES, Bed, Numbers, moments
from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.problems import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
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
from kedge.nn.from_module import from_module

FLOW: dict[str, Any] = ORACLES["linear_two_layer_flow"]
DESCENT: dict[str, Any] = ORACLES["linear_two_layer_gd_one_round"]
NEAR: dict[str, Any] = ORACLES["linear_two_layer_theory_near_minimum"]
MANY: dict[str, Any] = ORACLES["linear_m_clients"]
PRINTED = "printed_formula_with_extra_1/2"
FROZEN = {"fedavg": 0, "fedbug_1_frozen_step": 1, "fedbug_P0.4 (10 of 50 frozen)": 10, "fedbabu": NEVER}
Rows = list[tuple[str, str, Callable[[], Finding]]]
Minimum = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def point(n: Sequence[float], v: float) -> Point:
    """One seed's numbers."""
    return Point(torch.tensor(n, dtype=torch.float64), torch.tensor(v, dtype=torch.float64))


def two(given: dict[str, Any]) -> Point:
    """The start of an oracle about two clients."""
    return point([given["a"], given["b"]], given["v"])


def ratio(before: Point, after: Point) -> float:
    """r = d of the next round / d."""
    return float(discrepancy(after.n) / discrepancy(before.n))


def flow(network: Network) -> Finding:
    """Where gradient flow takes both clients, the round after it, and that av = 1 and a² − v² is kept."""
    start, want = two(FLOW["inputs"]), FLOW["expected"]
    training = Training(flow=True)
    n, v = gradient_flow(network, start, training)
    after = next_round(network, start, training)
    names = ("a_inf", "b_inf", "v_inf_client1", "v_inf_client2", "a_next", "b_next", "v_next")
    values = [*n.tolist(), *v.tolist(), *after.n.tolist(), float(after.v)]
    pairs = [Pair(name, want[name], value) for name, value in zip(names, values, strict=True)]
    pairs += [Pair(f"n·v of client {j + 1}", 1.0, float(n[j] * v[j])) for j in range(2)]
    kept, before = n**2 - v**2, start.n**2 - start.v**2
    pairs += [Pair(f"n² − v² of client {j + 1}", float(before[j]), float(kept[j])) for j in range(2)]
    pairs += [
        Pair("d", want["d"], float(discrepancy(start.n))),
        Pair("d of the next round", want["d_next"], float(discrepancy(after.n))),
        Pair("r", want["r"], ratio(start, after)),
    ]
    return compared(pairs, TOLERANCE)


def flow_as_printed(minimum: Minimum) -> Finding:
    """The paper's printed value, with another ½ in both: its product is 1/4."""
    start, want = two(FLOW["inputs"]), FLOW["expected"][PRINTED]
    n, v = minimum(start.n[:1], start.v[None])
    pairs = [
        Pair("a_inf as printed", want["a_inf"], float(n)),
        Pair("v_inf as printed", want["v_inf"], float(v)),
        Pair("product as printed", want["product"], float(n * v)),
        Pair("product as printed, 1/4", 0.25, float(n * v)),
    ]
    return compared(pairs, TOLERANCE)


def bed(network: Network, start: Point, gradient: float) -> Bed:
    """The laboratory for kedge's engines: client j holds the j-th unit vector and minimises g/2·(f − 1)²."""
    m = start.n.shape[-1]
    rows = torch.eye(m, dtype=torch.float64)
    clients = [Dataset(row[None], torch.zeros(1, dtype=torch.int64)) for row in rows]

    def objective(step: Step) -> Tensor:
        n = step.batch.x @ step.params["n"]
        error = network.output(n, step.params["v"].expand_as(n)) - 1
        return weighted_mean(gradient / 2 * error**2, step.batch)

    numbers = Numbers({"n": start.n.tolist(), "v": [float(start.v)]})
    return Bed(
        from_module(numbers), federation_from_datasets(clients, None).to("cpu", torch.float64), objective
    )


def method(frozen: float, steps: int) -> Algorithm:
    """kedge's method that freezes v in so many of the local steps."""
    if frozen == NEVER:
        return fedbabu("uniform")
    return replace(fedavg("uniform"), schedule=BottomUp(2 * frozen / steps))  # of two units


def by_engines(network: Network, start: Point, training: Training) -> dict[str, Point]:
    """The server's numbers a round later, by every engine."""
    local = LocalTraining(training.steps, 1, SGD(training.lr))
    stages = [(method(training.frozen, training.steps), 1)]
    cohorts = [range(start.n.shape[-1])]
    found = {}
    for name, engine in ENGINES.items():
        after = moments(bed(network, start, training.gradient), stages, local, cohorts, engine)[0]
        found[name] = Point(after.server.shared["n"], after.server.shared["v"][0])
    return found


def everywhere(network: Network, start: Point, training: Training) -> dict[str, Point]:
    """A round of gradient descent, by the laboratory and by every engine."""
    return {"laboratory": next_round(network, start, training)} | by_engines(network, start, training)


def descent(network: Network, gradient: int) -> Finding:
    """One round of FedAvg, of FedBug with one and ten frozen steps, of FedBABU."""
    given = DESCENT["inputs"]
    start, pairs = two(given), []
    for name, frozen in FROZEN.items():
        want = DESCENT["expected"][f"factor{gradient}:{name}"]
        training = Training(given["lr"], given["K"], frozen, gradient)
        for place, after in everywhere(network, start, training).items():
            got = [*after.n.tolist(), float(after.v)]
            each = zip("abv", want["a,b,v"], got, strict=True)
            pairs += [Pair(f"{place}, {name}, {letter}", *both) for letter, *both in each]
            pairs.append(Pair(f"{place}, {name}, r", want["r_empirical"], ratio(start, after)))
    return compared(pairs, TOLERANCE)


def near_minimum(network: Network, theory: Callable[[Network, Point, Training], Tensor]) -> Finding:
    """Theory and simulation close to av = bv = 1; the papers' printed r where it is the same."""
    given, want = NEAR["inputs"], NEAR["expected"]
    start = two(given)
    trainings = [Training(given["lr"], given["K"], s, given["gradient_factor"]) for s in (0, 1, NEVER)]
    average, bug, babu = trainings
    alone = [mean_cosine(network, Point(start.n[j : j + 1], start.v)) for j in range(2)]
    pairs = [
        Pair("cos²θ of client 1", want["cos2_theta_client1=a^2/(a^2+v^2)"], float(alone[0])),
        Pair("cos²θ of client 2", want["cos2_theta_client2"], float(alone[1])),
    ]
    for name, training, key in (
        ("fedavg", average, "r_theory_fedavg=(1+mean cos2)/2"),
        ("fedbug", bug, "r_theory_fedbug_1step=(1+(1-2*lr*v^2)*mean cos2)/2"),
        ("fedbabu, many steps", babu._replace(flow=True), "r_theory_fedbabu"),
    ):
        pairs.append(Pair(f"theory, {name}", want[key], float(theory(network, start, training))))
    for name, training, key in (
        ("fedavg", average, "r_empirical_fedavg"),
        ("fedbug", bug, "r_empirical_fedbug_1step"),
        ("fedbabu", babu, "r_empirical_fedbabu"),
    ):
        for place, after in everywhere(network, start, training).items():
            pairs.append(Pair(f"{place}, {name}", want[key], ratio(start, after)))
    for name, training, key in (
        ("fedavg", average, "r_theory_fedavg=(1+mean cos2)/2"),
        ("fedbabu", babu, "r_theory_fedbabu"),
    ):
        pairs.append(Pair(f"printed, {name}", want[key], float(paper_ratio(network, start, training))))
    exact = float(theory(network, start, babu))  # of these K steps, not of many
    pairs.append(Pair("theory, fedbabu, its K steps", want["r_empirical_fedbabu"], exact))
    return compared(pairs, TOLERANCE)


def many_clients(
    network: Network, case: str, theory: Callable[[Network, Point, Training], Tensor]
) -> Finding:
    """Four clients: d over ordered pairs, one round, r by simulation and by theory in the minimum."""
    given, want = MANY[case]["inputs"], MANY[case]["expected"]
    start, m = point(given["n"], given["v"]), len(given["n"])
    training = Training(given["lr"], given["K"], 0, given["gradient_factor"])
    pairs = [Pair("d", want["d"], float(discrepancy(start.n)))]
    for place, after in everywhere(network, start, training).items():
        each = enumerate(zip(want["n_next"], after.n.tolist(), strict=True), 1)
        pairs += [Pair(f"{place}, n of client {j}", *both) for j, both in each]
        pairs.append(Pair(f"{place}, v", want["v_next"], float(after.v)))
        pairs.append(Pair(f"{place}, r", want["r_empirical"], ratio(start, after)))
        if "d_next" in want:
            pairs.append(Pair(f"{place}, d of the next round", want["d_next"], float(discrepancy(after.n))))
    key = next(k for k in want if k.startswith("r_theory"))
    at = point([1.0] * m, 1.0)  # where cos²θ is ½ in both
    pairs.append(Pair("theory", want[key], float(theory(network, at, training))))
    return compared(pairs, TOLERANCE)


def additive_pair(network: Network) -> Finding:
    """Two clients of the additive model contract by exactly 3/4, with v frozen by 1/2: the oracle's note."""
    start, pairs = point([0.3, 1.7], 0.4), []
    for name, frozen, expected in (("fedavg", 0, 0.75), ("v frozen", NEVER, 0.5)):
        training = Training(steps=200, frozen=frozen)
        pairs += [
            Pair(f"{place}, {name}", expected, ratio(start, after))
            for place, after in everywhere(network, start, training).items()
        ]
        flowing = training._replace(flow=True)
        pairs.append(Pair(f"flow, {name}", expected, ratio(start, next_round(network, start, flowing))))
        pairs.append(Pair(f"theory, {name}", expected, float(predicted_ratio(network, start, flowing))))
    return compared(pairs, TOLERANCE)


def oracles() -> Rows:
    """The specification's numbers."""
    both = {"multiplicative": MULTIPLICATIVE, "additive_bias (appendix model)": ADDITIVE}
    rows: Rows = [
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
