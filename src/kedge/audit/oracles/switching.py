"""Oracle prop1_switching of the specification: the round in which FedDyn's stage ends, by Proposition 1.

The rule is called after every round, as the runner does, and compared with the bound from which it is
derived, D_T = (ζ + η Σ_{t<T} C_t)/T: with the values up to C_T, the rule is met exactly if D_T ≤ D_{T+1}.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kedge.audit.bed import bed_q, local_q
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.recorded_run import FixedCohorts, record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.rules.proposition1 import Proposition1
from kedge.running.runner import run

ORACLE: dict[str, Any] = ORACLES["prop1_switching"]
LHS, FIRST = "lhs_T1..T6 = T*eta*(C_T-mean(C_0..C_{T-1}))", "first_T_with_D_T<=D_{T+1}"
History = list[dict[str, Any]]


def constants(smoothness: float, alpha: float, phi0: float, kappa0: float) -> tuple[float, float]:
    """ζ = (1 + L/α) Φ_0/κ_0 and η = 1/(2α) + L/(2α²)."""
    return (1 + smoothness / alpha) * phi0 / kappa0, 1 / (2 * alpha) + smoothness / (2 * alpha**2)


def bounds(c: Sequence[float], zeta: float, eta: float) -> list[float]:
    """The bounds D_1, D_2, …"""
    return [(zeta + eta * sum(c[:rounds])) / rounds for rounds in range(1, len(c) + 1)]


def history_of(c: Sequence[float]) -> History:
    """A history in which both estimates of C_t have the values `c`."""
    return [{"round": t, "drift.h": v**0.5, "drift.spread": v} for t, v in enumerate(c, 1)]


def first_round_met(rule: Proposition1, history: History) -> int:
    """The first T for which the rule is met by the values up to C_T; 0: none."""
    return next((t for t in range(1, len(history)) if rule(history[: t + 1])), 0)


def proposition1(rule: Proposition1) -> Finding:
    """The rule's left-hand sides for the oracle's C_t, and the first T for which the rule is met."""
    given, expected = ORACLE["inputs"], ORACLE["expected"]
    c, zeta, eta = given["C_0..C_6"], given["zeta"], given["eta"]
    rule = replace(rule, threshold=zeta / eta)
    d = bounds(c, zeta, eta)
    pairs = [Pair(f"D_{t}", *both) for t, both in enumerate(zip(expected["D_1..D_7"], d, strict=True), 1)]
    left_sides = rule.criterion(history_of(c))
    pairs.append(Pair("values of T", len(expected[LHS]), len(left_sides)))
    for t, (value, actual) in enumerate(zip(expected[LHS], left_sides, strict=False), 1):
        pairs.append(Pair(f"T·η·(C_T − mean) at T = {t}", value, eta * actual))
    pairs.append(Pair("first T", expected[FIRST], first_round_met(rule, history_of(c))))
    return compare_numbers(pairs, TOLERANCE)


def met_where_bound_rises(rule: Proposition1) -> Finding:
    """The rule is met exactly if D_T ≤ D_{T+1}, for random C_t and multiples of the oracle's ζ."""
    example = ORACLE["constants_example"]
    given = example["inputs"]
    zeta, eta = constants(given["L"], given["alpha"], given["Phi0"], given["kappa0"])
    pairs = [Pair("ζ", example["expected"]["zeta"], zeta), Pair("η", example["expected"]["eta"], eta)]
    generator = torch.Generator().manual_seed(0)
    for number in range(20):
        c = torch.rand(12, generator=generator, dtype=torch.float64).tolist()
        bound, scaled = zeta * (1 + number), replace(rule, threshold=zeta * (1 + number) / eta)
        d = bounds(c, bound, eta)
        for t in range(1, len(c)):
            met = scaled(history_of(c)[: t + 1])
            pairs.append(Pair(f"ζ = {bound:g}, T = {t}", float(d[t - 1] <= d[t]), float(met)))
    return compare_numbers(pairs, TOLERANCE)


def estimates(rule: Proposition1, algorithm: Algorithm) -> Finding:
    """Both estimates of C_t on bed Q, with one or two participants in a round.

    h is −α times the mean of u_k over both clients. The spread is the mean of ‖g_k − ḡ_k‖² over both clients,
    with g_k = −α_k u_k and its mean ḡ_k over the rounds in which k took part.
    """
    cohorts = [[0], [1], [0, 1], [1], [0]]
    measured = replace(rule, estimate="clients").with_measurements(algorithm)
    dynamic = next(c for c in measured.corrections if c.name == "dynamic")
    spread = next(c for c in measured.corrections if c.name == "spread")
    sizes = ORACLES["test_bed_Q"]["n_samples"]
    share = [len(sizes) * n / sum(sizes) if getattr(dynamic, "scaling", "") == "data" else 1.0 for n in sizes]
    alpha: float = getattr(dynamic, "alpha", 0.0)
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), [(measured, len(cohorts))], local_q(), cohorts, engine)
        gradients: list[list[float]] = [[] for _ in sizes]  # by client, one for each of its rounds
        for number, (cohort, state) in enumerate(zip(cohorts, states, strict=True), 1):
            u = {k: float(memory["slots"]["dynamic"]["u"]["w"]) for k, memory in state.memories.items()}
            for client in cohort:
                gradients[client].append(-alpha / share[client] * u[str(client)])
            spreads = [(g[-1] - sum(g) / len(g)) ** 2 if g else 0.0 for g in gradients]
            slots = state.server.slots
            actual = spread.measures(slots["spread"])["drift.spread"]
            pairs.append(Pair(f"{name}, round {number}, spread", sum(spreads) / len(spreads), float(actual)))
            h = alpha * abs(sum(u.values())) / len(sizes)
            length = float(dynamic.measures(slots["dynamic"])["drift.h"])
            pairs.append(Pair(f"{name}, round {number}, ‖h‖", h, length))
    return compare_numbers(pairs, TOLERANCE)


def history_on_bed_q(
    stages: Sequence[Stage],
    cohorts: tuple[tuple[int, ...], ...],
    engine: Callable[[Model, Federation], Engine],
) -> History:
    """The history of a run on bed Q."""
    bed = bed_q()
    task = Task(tuple(stages), bed.model, bed.federation, FixedCohorts(cohorts=cohorts))
    return run(task, engine(bed.model, bed.federation)).history


def runner_switches(rule: Proposition1, first: Algorithm, second: Algorithm) -> Finding:
    """The runner ends the stage after the first round in which the rule is met.

    With partial participation ‖h‖² rises and falls: the thresholds end the stage in different rounds, the
    last in none.
    """
    cohorts = ((0, 1), (0, 1), (0,), (0,), (0,), (1,), (0,), (0,), (1,), (1,), (1,), (1,))
    rounds, loss = len(cohorts), bed_q().loss
    before, after = (Stage(replace(method, loss=loss), rounds, local_q()) for method in (first, second))
    pairs = []
    for name, engine in ENGINES.items():
        c = [line["drift.h"] ** 2 for line in history_on_bed_q([before], cohorts, engine)]
        lengths = []
        for zeta in (0.0, 0.001, 0.007, 0.01):
            d = bounds(c, zeta, 1.0)
            lengths.append(next((t + 1 for t in range(1, rounds) if d[t - 1] <= d[t]), rounds))
            stages = [replace(before, until=replace(rule, threshold=zeta)), replace(after, rounds=0)]
            history = history_on_bed_q(stages, cohorts, engine)
            actual = sum(line["stage"] == 0 for line in history)
            pairs.append(Pair(f"{name}, ζ/η = {zeta:g}, rounds of the first stage", lengths[-1], actual))
            pairs.append(Pair(f"{name}, ζ/η = {zeta:g}, rounds in all", rounds, len(history)))
        pairs.append(Pair(f"{name}, rounds that differ", 4, len(set(lengths))))
    return compare_numbers(pairs, TOLERANCE)
