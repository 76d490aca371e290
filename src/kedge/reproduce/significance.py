"""p-values of the tests that decide verdicts: the paired t-test over seeds, the sign test over groups."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

LEVEL = 0.05  # a result is significant below this probability


def paired_p(differences: Sequence[float]) -> float | None:
    """The p-value of a paired one-sided t-test that the mean of the differences is above 0.

    None if there is no test: fewer than two differences, or all of them equal, so the noise is unknown. (Two
    runs often differ by the same number of test samples.)
    """
    if len(differences) < 2:
        return None
    spread = stdev(differences)
    if spread <= 1e-9 * max(map(abs, differences)):
        return None
    return t_tail(mean(differences) / (spread / math.sqrt(len(differences))), len(differences) - 1)


def t_tail(t: float, freedom: int) -> float:
    """The probability that Student's t with `freedom` degrees of freedom is above `t`.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4: with θ = atan(t / √freedom), the
    probability between -t and t is (2/π)(θ + sin θ cos θ S) for an odd number of degrees and sin θ S for an
    even one, with S = 1 + a cos² θ + a b cos⁴ θ + …; the factors are 2/3, 4/5, … or 1/2, 3/4, …
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term, total = 1.0, 0.0
    for k in range(freedom // 2):
        total += term
        term *= (2 * k + 1 + odd) / (2 * k + 2 + odd) * math.cos(angle) ** 2
    if odd:
        inside = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        inside = math.sin(angle) * total
    tail = max(0.0, (1 - inside) / 2)
    return tail if t >= 0 else 1 - tail


def sign_p(heads: int, count: int) -> float:
    """The probability of at least `heads` heads in `count` throws of a fair coin."""
    favorable = sum(math.comb(count, k) for k in range(heads, count + 1))
    return float(favorable / 2**count)
