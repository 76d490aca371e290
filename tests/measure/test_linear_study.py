"""The comparison of methods in the linear model: statistics by hand, missing values, claims of the paper."""

import json
import math
import time
from itertools import pairwise

import pytest
import torch

from kedge.measure.theory.contraction import predicted_ratio
from kedge.measure.theory.linear import (
    ADDITIVE,
    MULTIPLICATIVE,
    NEVER,
    Training,
    discrepancy,
    loss,
    random_start,
    ratios,
    trajectory,
)
from kedge.measure.theory.study import (
    correlation,
    finite_statistic,
    frozen_steps,
    quantile,
    seed_means,
    study,
    win_count,
)

PAPER = {
    "fedavg": Training(),
    "one": Training(frozen=1),
    "P": Training(frozen=10),
    "fedbabu": Training(frozen=NEVER),
}


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("share", "steps", "frozen"), [(0.4, 50, 10), (0.1, 50, 2), (1.0, 50, 25), (0.04, 50, 1), (0.03, 50, 0)]
)
def test_a_share_freezes_the_whole_steps_of_its_first_half(share: float, steps: int, frozen: int) -> None:
    assert frozen_steps(share, steps) == frozen


def test_the_study_tells_what_the_formulas_say() -> None:
    """Compute every seed and round again in plain Python."""
    found = study(MULTIPLICATIVE, {"fedavg": Training(), "P": Training(frozen=10)}, 5, 3, 6)
    first, second = found["methods"]
    for entry, training in ((first, Training()), (second, Training(frozen=10))):
        course = trajectory(MULTIPLICATIVE, random_start(5, 3), training, 6)
        d = discrepancy(course.n).T.tolist()
        by_hand = [[after / before for before, after in pairwise(row)] for row in d]
        assert entry["by_round"]["ratio"] == by_hand
        seeds = [math.prod(row) ** (1 / 6) for row in by_hand]
        assert entry["by_seed"]["ratio"] == pytest.approx(seeds, rel=1e-13)
        assert entry["ratio"] == pytest.approx(sorted(seeds)[2], rel=1e-13)
        theory = [
            predicted_ratio(MULTIPLICATIVE, type(course)(course.n[t], course.v[t]), training)
            for t in range(6)
        ]
        assert entry["by_round"]["theory"] == torch.stack(theory, 1).tolist()
        apart = [
            r - t
            for a, b in zip(by_hand, entry["by_round"]["theory"], strict=True)
            for r, t in zip(a, b, strict=True)
        ]
        assert entry["error"] == pytest.approx(sum(map(abs, apart)) / 30, rel=1e-12)
        assert entry["excess"] == pytest.approx(max(apart), rel=1e-12)
        assert entry["final_loss"] == sorted(loss(MULTIPLICATIVE, course)[-1].tolist())[2]
        assert (entry["rounds_compared"], entry["diverged"]) == (30, 0)
    assert first["faster"] is first["faster_first_round"] is None
    pairs = zip(first["by_seed"]["ratio"], second["by_seed"]["ratio"], strict=True)
    assert second["faster"]["seeds"] == sum(y < x for x, y in pairs)
    pairs = zip(first["by_round"]["ratio"], second["by_round"]["ratio"], strict=True)
    assert second["faster_first_round"]["seeds"] == sum(y[0] < x[0] for x, y in pairs)


def test_the_paper_s_simulation_is_quick_and_its_claims_hold_where_they_do() -> None:
    """Theory and simulation correlate; FedBug contracts faster over a run, not in every first round.

    FedBABU's ½ holds unless v starts near 0: some seeds contract more slowly than under FedAvg.
    """
    start = time.perf_counter()
    average, one, share, babu = study(MULTIPLICATIVE, PAPER, 50, 2, 80)["methods"]
    assert time.perf_counter() - start < 10
    assert average["correlation"]["rounds"] > 0.99
    assert average["correlation"]["seeds"] > 0.999
    assert average["correlation"]["first_round"] < 0.7
    for bug in (one, share):
        assert bug["faster"] == {"seeds": 50, "of": 50, "share": 1.0}
        assert 30 <= bug["faster_first_round"]["seeds"] < 45
        assert bug["ratio"] < average["ratio"] - 0.05
        assert bug["error"] < 2e-3 < 2e-2 < bug["printed_error"]
    assert babu["ratio"] == pytest.approx(0.5, abs=1e-4)
    assert 40 < babu["faster"]["seeds"] < 50
    assert max(babu["by_seed"]["ratio"]) > 0.99
    assert babu["error"] < 1e-4 < 0.05 < babu["printed_error"]


def test_with_m_clients_the_corrected_ratio_holds_and_the_printed_one_does_not() -> None:
    average, _, share, _ = study(MULTIPLICATIVE, PAPER, 20, 10, 40)["methods"]
    for one in (average, share):
        assert one["error"] < 0.005
        assert one["printed_error"] > 0.15


def test_the_printed_minimum_keeps_rounds_of_flow_away_from_the_solution() -> None:
    """Its rounds end at n·v = ¼ for every client, with a loss of 9/16."""
    flowing = {"fedavg": Training(flow=True)}
    found = study(MULTIPLICATIVE, flowing, 10, 2, 200)
    assert found["printed_flow"]["product"] == pytest.approx(0.25, rel=1e-14)
    assert found["printed_flow"]["final_loss"] == pytest.approx(9 / 16, rel=1e-9)
    assert found["methods"][0]["final_loss"] < 1e-20
    assert study(ADDITIVE, flowing, 3, 2, 2)["printed_flow"] is None
    assert study(MULTIPLICATIVE, {"fedavg": Training()}, 3, 2, 2)["printed_flow"] is None


def test_divergence_is_counted_and_leaves_gaps_not_nan() -> None:
    found = study(MULTIPLICATIVE, {"fedavg": Training(lr=1.0), "P": Training(lr=1.0, frozen=10)}, 6, 2, 5)
    text = json.dumps(found, allow_nan=False)
    first, second = json.loads(text)["methods"]
    assert first["diverged"] == second["diverged"] == 6
    assert first["ratio"] is first["error"] is first["final_loss"] is None
    assert first["by_round"]["ratio"] == [[None] * 5] * 6
    assert second["faster"] == {"seeds": 0, "of": 0, "share": None}
    assert first["loss"]["median"][0] > 0
    assert first["loss"]["median"][1:] == [None] * 5


def test_nothing_correlates_with_a_constant_or_with_two_points() -> None:
    assert correlation(numbers(0.5, 0.5, 0.5), numbers(1, 2, 3)) is None
    assert correlation(numbers(1, 2), numbers(1, 2)) is None
    assert correlation(numbers(1, 2, math.nan), numbers(1, 2, 3)) is None
    assert correlation(numbers(1, 2, 3, math.nan), numbers(-2, -4, -6, 0)) == pytest.approx(-1, rel=1e-12)


def test_statistics_leave_out_what_is_no_number() -> None:
    assert finite_statistic(numbers(math.nan, 3, math.inf, 1), torch.mean) == 2
    assert finite_statistic(numbers(math.nan), torch.mean) is None
    assert win_count(numbers(1, 2, math.nan, 1), numbers(2, 2, 3, math.nan)) == {
        "seeds": 1,
        "of": 2,
        "share": 0.5,
    }
    assert seed_means(torch.tensor([[2.0, math.nan], [8.0, math.nan]])).tolist() == pytest.approx(
        [4.0, math.nan], nan_ok=True
    )
    values = numbers(4, 1, 3, math.nan)
    assert [float(quantile(values, q)) for q in (0, 0.5, 1)] == [1, 3.5, math.inf]
    assert float(quantile(numbers(math.nan, math.inf), 0.5)) == math.inf
    assert ratios(torch.zeros(3, 2)).isnan().all()
