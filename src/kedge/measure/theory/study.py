"""Statistics of methods in the linear model: theory against simulation, FedBug against FedAvg.

The ratio of a seed is the geometric mean of r over its rounds, (d_T/d_0)^(1/T), where T counts the rounds in
which d is above rounding. Correlations are Pearson's; they need three points and values that differ. A value
that does not exist is None: a round that is not compared, a loss that is not finite.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kedge.algorithms.fedbug import BottomUp
from kedge.core.schedules import Clock
from kedge.measure.theory.contraction import paper_minimum, paper_ratio, predicted_ratio
from kedge.measure.theory.linear import (
    MULTIPLICATIVE,
    NEVER,
    Network,
    Point,
    Training,
    discrepancy,
    loss,
    random_start,
    ratios,
    trajectory,
)

QUARTILES = {"lower": 0.25, "median": 0.5, "upper": 0.75}
SAME = 1e-9  # a smaller standard deviation is rounding


def frozen_steps(share: float, steps: int) -> int:
    """The number of local steps in which FedBug's schedule freezes v, the second of two units."""
    schedule = BottomUp(share)
    return sum(not schedule(Clock(0, 0, step, steps), 2)[1] for step in range(steps))


def study(
    network: Network, methods: Mapping[str, Training], seeds: int, clients: int, rounds: int
) -> dict[str, Any]:
    """Statistics of each method from the same starting points; later methods are compared with the first."""
    start = random_start(seeds, clients)
    base: Tensor | None = None
    statistics = []
    for name, training in methods.items():
        points = trajectory(network, start, training, rounds)
        r = ratios(discrepancy(points.n))
        statistics.append(
            {"method": name, **method_statistics(network, points, r, training), **comparison(r, base)}
        )
        base = r if base is None else base
    return {"methods": statistics, "printed_flow": paper_flow(network, methods, start, rounds)}


def method_statistics(network: Network, points: Point, r: Tensor, training: Training) -> dict[str, Any]:
    """Ratios, correlations, errors and losses of one method; `points` is its trajectory, `r` its ratios."""
    before = Point(points.n[:-1], points.v[:-1])
    unknown = r.isnan()
    theory, as_printed = (
        torch.where(unknown, torch.nan, formula(network, before, training))
        for formula in (predicted_ratio, paper_ratio)
    )
    each = {"ratio": r, "theory": theory, "printed": as_printed}
    losses = loss(network, points)
    quartiles = {name: as_lists(quantile(losses, q)) for name, q in QUARTILES.items()}
    return {
        "frozen": None if training.frozen == NEVER else int(training.frozen),
        "rounds_compared": int((~unknown).sum()),
        "diverged": int((~torch.isfinite(losses)).any(0).sum()),
        **{name: finite_statistic(seed_means(values), median) for name, values in each.items()},
        "correlation": {
            "rounds": correlation(theory, r),
            "first_round": correlation(theory[0], r[0]),
            "seeds": correlation(seed_means(theory), seed_means(r)),
        },
        "error": finite_statistic((r - theory).abs(), torch.mean),
        "printed_error": finite_statistic((r - as_printed).abs(), torch.mean),
        "excess": finite_statistic(r - theory, torch.max),
        "final_loss": quartiles["median"][-1],
        "loss": quartiles,
        "by_seed": {name: as_lists(seed_means(values)) for name, values in each.items()},
        "by_round": {name: as_lists(values.T) for name, values in each.items()},
    }


def comparison(r: Tensor, base: Tensor | None) -> dict[str, Any]:
    """The number of seeds in which d shrinks faster than with the first method; None for the first method."""
    if base is None:
        return {"faster": None, "faster_first_round": None}
    return {
        "faster": win_count(seed_means(r), seed_means(base)),
        "faster_first_round": win_count(r[0], base[0]),
    }


def win_count(left: Tensor, right: Tensor) -> dict[str, Any]:
    """The number of pairs with `left` < `right`, among the pairs in which both are finite."""
    both = torch.isfinite(left) & torch.isfinite(right)
    count, pairs = int((left < right)[both].sum()), int(both.sum())
    return {"seeds": count, "of": pairs, "share": count / pairs if pairs else None}


def paper_flow(
    network: Network, methods: Mapping[str, Training], start: Point, rounds: int
) -> dict[str, float] | None:
    """Results with the paper's printed minimum, where n·v = ¼; None for models for which it prints none."""
    training = next(iter(methods.values()))
    if network is not MULTIPLICATIVE or not training.flow:
        return None
    points = trajectory(network._replace(minimum=paper_minimum), start, training, rounds)
    n, v = paper_minimum(start.n, start.v[:, None].expand_as(start.n))
    last = loss(network, Point(points.n[-1], points.v[-1]))
    return {"product": float((n * v).mean()), "final_loss": float(median(last))}


def seed_means(r: Tensor) -> Tensor:
    """The geometric mean over each seed's rounds, [seeds]; NaN if no round is compared."""
    return r.log().nanmean(0).exp()


def correlation(left: Tensor, right: Tensor) -> float | None:
    """Pearson's correlation of the pairs in which both are finite, or None."""
    both = torch.isfinite(left) & torch.isfinite(right)
    pairs = torch.stack([left[both], right[both]])
    if pairs.shape[1] < 3 or float(pairs.std(1).min()) < SAME:
        return None
    return float(torch.corrcoef(pairs)[0, 1])


def quantile(values: Tensor, q: float) -> Tensor:
    """Quantile over the last axis, the seeds; diverged seeds count as the largest values."""
    ordered = torch.where(torch.isfinite(values), values, torch.inf).sort(-1).values
    position = q * (values.shape[-1] - 1)
    low, high = ordered[..., math.floor(position)], ordered[..., math.ceil(position)]
    # Interpolating between two infinite values would give NaN.
    return torch.where(low == high, low, low + (high - low) * (position - math.floor(position)))


def median(values: Tensor) -> Tensor:
    """The median over the seeds."""
    return quantile(values, 0.5)


def finite_statistic(values: Tensor, statistic: Callable[[Tensor], Tensor]) -> float | None:
    """`statistic` of the finite values, or None."""
    numbers = values[torch.isfinite(values)]
    return float(statistic(numbers)) if numbers.numel() else None


def as_lists(values: Tensor) -> list[Any]:
    """Nested lists with None for values that are not finite."""
    if values.ndim > 1:
        return [as_lists(row) for row in values]
    return [value if math.isfinite(value) else None for value in values.tolist()]
