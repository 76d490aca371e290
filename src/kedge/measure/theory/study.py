"""Methods compared in the linear laboratory, in plain numbers: theory and simulation, FedBug and FedAvg.

A seed's ratio is the geometric mean of r over its rounds, (d_T/d_0)^(1/T), T the rounds in which d is more
than rounding. Correlations are Pearson's; there is none of fewer than three points, nor where theory says the
same everywhere. What cannot be told is None: a round that is not compared, a loss that is not finite.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kedge.algorithms.fedbug import BottomUp
from kedge.core.schedules import Clock
from kedge.measure.theory.contraction import printed, printed_minimum, theoretical
from kedge.measure.theory.linear import (
    MULTIPLICATIVE,
    NEVER,
    Network,
    Point,
    Training,
    discrepancy,
    drawn,
    loss,
    ratios,
    simulated,
)

QUARTILES = {"lower": 0.25, "median": 0.5, "upper": 0.75}
SAME = 1e-9  # a spread below this is rounding


def frozen_steps(share: float, steps: int) -> int:
    """In how many of so many steps FedBug's schedule keeps v frozen, the second of two units."""
    schedule = BottomUp(share)
    return sum(not schedule(Clock(0, 0, step, steps), 2)[1] for step in range(steps))


def study(
    network: Network, methods: Mapping[str, Training], seeds: int, clients: int, rounds: int
) -> dict[str, Any]:
    """Every method from the same starts; the first is the one that the others are compared with."""
    start = drawn(seeds, clients)
    base: Tensor | None = None
    found = []
    for name, training in methods.items():
        course = simulated(network, start, training, rounds)
        r = ratios(discrepancy(course.n))
        found.append({"method": name, **told(network, course, r, training), **beside(r, base)})
        base = r if base is None else base
    return {"methods": found, "printed_flow": printed_flow(network, methods, start, rounds)}


def told(network: Network, course: Point, r: Tensor, training: Training) -> dict[str, Any]:
    """What one method's rounds show."""
    before = Point(course.n[:-1], course.v[:-1])
    unknown = r.isnan()
    theory, as_printed = (
        torch.where(unknown, torch.nan, say(network, before, training)) for say in (theoretical, printed)
    )
    each = {"ratio": r, "theory": theory, "printed": as_printed}
    losses = loss(network, course)
    quartiles = {name: plain(quantile(losses, q)) for name, q in QUARTILES.items()}
    return {
        "frozen": None if training.frozen == NEVER else int(training.frozen),
        "rounds_compared": int((~unknown).sum()),
        "diverged": int((~torch.isfinite(losses)).any(0).sum()),
        **{name: known(of_seeds(values), middle) for name, values in each.items()},
        "correlation": {
            "rounds": correlation(theory, r),
            "first_round": correlation(theory[0], r[0]),
            "seeds": correlation(of_seeds(theory), of_seeds(r)),
        },
        "error": known((r - theory).abs(), torch.mean),
        "printed_error": known((r - as_printed).abs(), torch.mean),
        "excess": known(r - theory, torch.max),
        "final_loss": quartiles["median"][-1],
        "loss": quartiles,
        "by_seed": {name: plain(of_seeds(values)) for name, values in each.items()},
        "by_round": {name: plain(values.T) for name, values in each.items()},
    }


def beside(r: Tensor, base: Tensor | None) -> dict[str, Any]:
    """In how many seeds d shrinks faster than under the first method; None for that one itself."""
    if base is None:
        return {"faster": None, "faster_first_round": None}
    return {"faster": less(of_seeds(r), of_seeds(base)), "faster_first_round": less(r[0], base[0])}


def less(left: Tensor, right: Tensor) -> dict[str, Any]:
    """In how many pairs the left is less, of those that are numbers."""
    both = torch.isfinite(left) & torch.isfinite(right)
    count, of = int((left < right)[both].sum()), int(both.sum())
    return {"seeds": count, "of": of, "share": count / of if of else None}


def printed_flow(
    network: Network, methods: Mapping[str, Training], start: Point, rounds: int
) -> dict[str, float] | None:
    """Rounds by the minimum that the paper prints, where n·v = ¼; None where it prints none."""
    training = next(iter(methods.values()))
    if network is not MULTIPLICATIVE or not training.flow:
        return None
    course = simulated(network._replace(minimum=printed_minimum), start, training, rounds)
    n, v = printed_minimum(start.n, start.v[:, None].expand_as(start.n))
    last = loss(network, Point(course.n[-1], course.v[-1]))
    return {"product": float((n * v).mean()), "final_loss": float(middle(last))}


def of_seeds(r: Tensor) -> Tensor:
    """The geometric mean of every seed's rounds, [seeds]; NaN where none is compared."""
    return r.log().nanmean(0).exp()


def correlation(left: Tensor, right: Tensor) -> float | None:
    """Pearson's, of the pairs that are numbers."""
    both = torch.isfinite(left) & torch.isfinite(right)
    pairs = torch.stack([left[both], right[both]])
    if pairs.shape[1] < 3 or float(pairs.std(1).min()) < SAME:
        return None
    return float(torch.corrcoef(pairs)[0, 1])


def quantile(values: Tensor, q: float) -> Tensor:
    """Of the seeds, the last axis; one that diverged counts as the largest."""
    ordered = torch.where(torch.isfinite(values), values, torch.inf).sort(-1).values
    place = q * (values.shape[-1] - 1)
    low, high = ordered[..., math.floor(place)], ordered[..., math.ceil(place)]
    # Between equal ones nothing is to be mixed, and of two infinite ones nothing can be.
    return torch.where(low == high, low, low + (high - low) * (place - math.floor(place)))


def middle(values: Tensor) -> Tensor:
    """The median."""
    return quantile(values, 0.5)


def known(values: Tensor, of: Callable[[Tensor], Tensor]) -> float | None:
    """A statistic of the numbers among them; None where there are none."""
    numbers = values[torch.isfinite(values)]
    return float(of(numbers)) if numbers.numel() else None


def plain(values: Tensor) -> list[Any]:
    """Nested lists with None for what is no number."""
    if values.ndim > 1:
        return [plain(row) for row in values]
    return [value if math.isfinite(value) else None for value in values.tolist()]
