"""The rules that end a stage: Proposition 1 and its estimates, the plateau, the threshold."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running.plain_torch import COHORTS, ENGINES, SIZES, Kind, Witness, also, start, task_of

import kedge
from kedge.algorithms import feddyn
from kedge.core.errors import RequestError
from kedge.core.tree import Leaves
from kedge.rules.plateau import Plateau
from kedge.rules.proposition1 import Proposition1
from kedge.running.runner import run

ORACLE = json.loads((Path(kedge.__file__).parent / "audit/oracles.json").read_text())["prop1_switching"]
each_engine = pytest.mark.parametrize("kind", ENGINES)


def drifting(values: list[float]) -> list[dict[str, Any]]:
    """A history with these C_t, in both estimates."""
    return [{"round": t, "drift.h": v**0.5, "drift.spread": v} for t, v in enumerate(values, 1)]


@pytest.mark.parametrize("estimate", ["h", "clients"])
def test_proposition_1_is_met_where_the_oracle_s_bound_stops_falling(estimate: Any) -> None:
    """D_T = (ζ + η Σ_{t<T} C_t)/T, computed from the definition; the first D_T ≤ D_{T+1} is at T = 4.

    C_0 is in the first line of a history, so C_T in line T + 1: the stage ends after five rounds."""
    c, zeta, eta = ORACLE["inputs"]["C_0..C_6"], ORACLE["inputs"]["zeta"], ORACLE["inputs"]["eta"]
    bound = [(zeta + eta * sum(c[:t])) / t for t in range(1, len(c) + 1)]
    assert bound == pytest.approx(ORACLE["expected"]["D_1..D_7"])
    first = next(t for t in range(1, len(c)) if bound[t - 1] <= bound[t])
    assert first == ORACLE["expected"]["first_T_with_D_T<=D_{T+1}"] == 4
    rule = Proposition1(zeta / eta, estimate, smooth=1)
    sides = ORACLE["expected"]["lhs_T1..T6 = T*eta*(C_T-mean(C_0..C_{T-1}))"]
    assert [eta * side for side in rule.criterion(drifting(c))] == pytest.approx(sides)
    met = [rule(drifting(c)[:rounds]) for rounds in range(1, len(c) + 1)]
    assert met.index(True) + 1 == first + 1


def test_estimates_are_smoothed_over_the_rounds_before() -> None:
    """Means of three: 2, 3, 5; the first can be compared after four rounds."""
    rule = Proposition1(smooth=3)
    history = drifting([1, 2, 3, 4, 8])
    assert [len(rule.criterion(history[:n])) for n in range(6)] == [0, 0, 0, 0, 1, 2]
    assert rule.criterion(history) == pytest.approx([3 - 2, 2 * 5 - (2 + 3)])
    assert rule(history[:4])
    assert not replace(rule, threshold=1.1)(history[:4])
    assert replace(rule, threshold=5.0 - 1e-9)(history)


def test_a_norm_that_overflowed_is_infinite() -> None:
    history = drifting([1, 1, 1])
    history[-1]["drift.h"] = None  # null, as the history writes numbers that are not finite
    assert Proposition1(1e300, smooth=1)(history)


@each_engine
def test_the_estimate_by_h_is_alpha_times_the_mean_of_all_clients_memories(kind: Kind) -> None:
    """‖h‖² with h = −α (1/m) Σ u_i over all m clients; u_i is 0 if client i never took part."""
    rule = Proposition1(smooth=1)
    task = task_of((rule.with_measurements(feddyn(0.1)), 4))
    engine = kind(task.model, task.federation)
    history = run(task, engine).history
    rows = engine.save().values()
    total = {k: torch.stack([row["slots"]["dynamic"]["u"][k] for row in rows]).sum(0) for k in start(task)}
    by_hand = sum(float((0.1 * v / len(SIZES)).square().sum()) for v in total.values())
    assert rule.estimates(history)[-1] == pytest.approx(by_hand, rel=1e-12)
    assert by_hand > 0


@pytest.mark.parametrize("scaling", ["uniform", "data"])
@each_engine
def test_the_estimate_by_clients_is_the_mean_spread_over_all_of_them(kind: Kind, scaling: Any) -> None:
    """The mean of ‖g_k − ḡ_k‖² over all m clients, with g_k = −α_k Σ (w_k − θ) and ḡ_k its mean over the
    rounds of client k. A client that rests keeps its value; client 4 never takes part and has 0. A correction
    records w_k."""
    rule = Proposition1(estimate="clients", smooth=1)
    algorithm = also(rule.with_measurements(feddyn(0.1, scaling)), Witness())
    alphas = [0.1 * (sum(SIZES) / len(SIZES) / n if scaling == "data" else 1.0) for n in SIZES]
    past: list[list[Leaves]] = [[] for _ in SIZES]
    sent, by_hand = None, []
    for rounds in range(1, 5):
        task = task_of((algorithm, rounds))
        sent = sent or start(task)
        engine = kind(task.model, task.federation)
        progress = run(task, engine)
        for c in COHORTS[rounds - 1]:
            ended = engine.save()[str(c)]["slots"]["witness"]["last"]
            before = past[c][-1] if past[c] else {k: torch.zeros_like(v) for k, v in sent.items()}
            past[c].append({k: before[k] - alphas[c] * (ended[k] - sent[k]) for k in sent})
        sent = progress.server.shared
        by_hand.append(sum(spread(own) for own in past) / len(SIZES))
    assert rule.estimates(progress.history) == pytest.approx(by_hand, rel=1e-10)
    assert by_hand[0] == 0  # the first g_k is its own mean
    assert by_hand[-1] > 0


def spread(past: list[Leaves]) -> float:
    """‖last − mean‖²."""
    if not past:
        return 0.0
    return sum(
        float((v - torch.stack([g[k] for g in past]).mean(0)).square().sum()) for k, v in past[-1].items()
    )


def accuracies(*values: float | None, metric: str = "distributed.global.accuracy") -> list[dict[str, Any]]:
    """A history; None is a round without an evaluation."""
    return [
        {"round": t, "train.loss": 1.0, **({} if v is None else {metric: v, "average.local.accuracy": 0.5})}
        for t, v in enumerate(values, 1)
    ]


def ends_after(rule: Plateau, history: list[dict[str, Any]]) -> int | None:
    """The first round after which the rule is met."""
    return next((n for n in range(1, len(history) + 1) if rule(history[:n])), None)


def test_a_plateau_of_accuracy() -> None:
    rising = accuracies(0.1, 0.5, 0.4, 0.5, 0.6, 0.6, 0.5, 0.6)
    assert ends_after(Plateau(patience=2), rising) == 4  # 0.4 and 0.5 do not pass 0.5
    assert ends_after(Plateau(patience=3), rising) == 8  # 0.6, 0.5 and 0.6 do not pass 0.6
    assert ends_after(Plateau(patience=4), rising) is None
    assert ends_after(Plateau(patience=1), accuracies(0.1, 0.2, 0.3)) is None
    assert ends_after(Plateau(patience=2, by=0.1), accuracies(0.1, 0.3, 0.35, 0.4, 0.45)) == 4
    assert ends_after(Plateau(patience=2), accuracies(None, 0.1, None, 0.5, None, 0.4, None, 0.5)) == 8


@pytest.mark.parametrize("metric", ["distributed.global.loss", "personal.local.loss.tuned", "train.loss"])
def test_a_plateau_of_loss_falls(metric: str) -> None:
    assert ends_after(Plateau(metric, 2), accuracies(1.0, 0.5, 0.4, 0.3, metric=metric)) is None
    assert ends_after(Plateau(metric, 2), accuracies(1.0, 0.5, 0.6, 0.5, metric=metric)) == 4


def test_a_plateau_of_what_the_history_has_not_is_refused_at_the_first_evaluation() -> None:
    rule = Plateau("all.global.accuracy", 5)
    assert not rule(accuracies(None, None))
    with pytest.raises(RequestError, match=r"all\.global.*no such metric.*distributed\.global\.accuracy"):
        rule(accuracies(None, 0.5, None))
    # Tuned models may be measured in a later evaluation.
    assert not Plateau("personal.local.accuracy.tuned", 1)(accuracies(0.5, 0.5))


def test_threshold_of_says_where_there_is_none() -> None:
    hill = drifting([1, 2, 4, 3, 2, 1, 1, 1])
    with pytest.raises(RequestError, match=r"no threshold ≥ 0 .* round 6: .* -7 .* up to 5 .*: 2, 3\."):
        kedge.threshold_of(hill, 0.75, smooth=1)
    with pytest.raises(RequestError, match=r"can give: none\."):
        kedge.threshold_of(drifting([8, 7, 6, 5, 4, 3, 2, 1]), 0.75, smooth=1)
    with pytest.raises(RequestError, match="more than 10 rounds before the switch"):
        kedge.threshold_of(hill, 0.75)
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(RequestError, match="need 0 < share < 1"):
            kedge.threshold_of(hill, share, smooth=1)
    with pytest.raises(RequestError, match=r"round 1 .* no drift\.h"):
        kedge.threshold_of([{"round": t} for t in range(1, 9)], smooth=1)


def test_threshold_of_lies_between_what_is_reached_there_and_before() -> None:
    climb = drifting([1, 2, 3, 4, 5, 6, 7, 8])  # T·(C_T − mean) = T(T+1)/2
    assert kedge.threshold_of(climb, 0.75, smooth=1) == pytest.approx((10 + 15) / 2)
    late = drifting([4, 2, 1, 1, 1, 6, 6, 6])  # below 0 until the sixth: 5·6 − 9 = 21
    assert kedge.threshold_of(late, 0.75, smooth=1) == pytest.approx(21 / 2)
