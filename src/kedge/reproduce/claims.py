"""Verdicts on a paper's claims: held, not held, within noise, or not measured.

A claim makes one statement about a list of comparisons, each between two places of the table. The measured
comparisons get one verdict:

- held: every comparison has the claimed sign, and their mean is significantly above zero.
- not held: the mean is significantly below zero, or a single comparison is. (For a single comparison the
  level is divided by the number of comparisons, because one of many is easily wrong by chance.)
- within noise: everything else; deviations from the claim may be chance.

Significance is a probability below 0.05 in a one-sided test:

- If all comparisons share two or more seeds: a paired t-test over the seeds. Each seed gives one number, the
  mean difference over all comparisons. Comparisons that share runs are not independent, but seeds are, so
  the sample size is the number of seeds. With three seeds the test confirms large differences only.
- With one seed: a sign test. Comparisons that share a run, directly or through others, form a group, and
  each group is one coin toss, the sign of its mean. The test needs at least five groups. Runs of one seed
  share initial weights and sampled clients; the test ignores this, so the result says "one seed".

A run that does not reach a target counts as if it reached the target in its last round, which never
exaggerates the difference of two runs of equal length. A comparison with a run that diverged is not measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal, NamedTuple

from kedge.reproduce.comparisons import Comparison, comparisons, size
from kedge.reproduce.measured import Measured
from kedge.reproduce.paper import Claim
from kedge.reproduce.significance import LEVEL, paired_p, sign_p

Verdict = Literal["held", "not held", "within noise", "not measured"]


class MeanTest(NamedTuple):
    """A test of the mean of all comparisons."""

    name: str
    p: float | None  # p-value against "the mean is not above zero"; None: no noise to test against
    opposite_p: float | None  # p-value against "the mean is not below zero"


@dataclass(frozen=True)
class Judgment:
    """A claim, its verdict and the reasons."""

    claim: Claim
    verdict: Verdict
    comparisons: tuple[Comparison, ...]
    test: MeanTest | None  # None: nothing was measured
    evidence: str  # sentences

    @property
    def measured(self) -> list[Comparison]:
        """The comparisons that have a number."""
        return [comparison for comparison in self.comparisons if comparison.difference is not None]

    @property
    def label(self) -> str:
        """The verdict, with the number of measured comparisons if some are missing."""
        done, count = len(self.measured), len(self.comparisons)
        return f"{self.verdict} ({done} of {count} measured)" if 0 < done < count else self.verdict


def judge_claims(measured: Measured) -> list[Judgment]:
    """A verdict on each claim of the paper."""
    return [judge(claim, tuple(comparisons(claim, measured))) for claim in measured.paper.claims]


def judge(claim: Claim, comparisons: tuple[Comparison, ...]) -> Judgment:
    """The verdict on a claim by its comparisons."""
    measured = [comparison for comparison in comparisons if comparison.difference is not None]
    if not measured:
        return Judgment(claim, "not measured", comparisons, None, evidence(comparisons, None, []))
    test = mean_test(measured)
    opposite = [comparison for comparison in measured if is_opposite(comparison, len(measured))]
    if opposite or is_significant(test.opposite_p):
        verdict: Verdict = "not held"
    elif all(size(comparison) > 0 for comparison in measured) and is_significant(test.p):
        verdict = "held"
    else:
        verdict = "within noise"
    return Judgment(claim, verdict, comparisons, test, evidence(comparisons, test, opposite))


def mean_test(measured: Sequence[Comparison]) -> MeanTest:
    """The paired t-test over seeds if all comparisons share two seeds, otherwise the sign test."""
    seeds = sorted(set.intersection(*(set(comparison.by_seed) for comparison in measured)))
    if len(seeds) > 1 and len({comparison.unit for comparison in measured}) == 1:
        means = [mean(comparison.by_seed[seed] for comparison in measured) for seed in seeds]
        name = f"paired t-test over {len(seeds)} seeds"
        return MeanTest(name, paired_p(means), paired_p([-value for value in means]))
    signs = [sign for sign in map(group_sign, groups(measured)) if sign]
    shared = "one seed" if len(seeds) == 1 else "several units" if seeds else "no seed in common"
    name = f"{shared}: sign test over {len(signs)} group{'s' * (len(signs) != 1)} of runs"
    return MeanTest(name, sign_p(signs.count(1), len(signs)), sign_p(signs.count(-1), len(signs)))


def groups(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """The comparisons in groups: comparisons of different groups share no run."""
    found: list[tuple[set[str], list[Comparison]]] = []  # cells of a group, and its comparisons
    for comparison in comparisons:
        cells, members = {comparison.first.cell, comparison.second.cell}, [comparison]
        for group in [group for group in found if group[0] & cells]:
            found.remove(group)
            cells, members = cells | group[0], group[1] + members
        found.append((cells, members))
    return [members for _, members in found]


def group_sign(group: Sequence[Comparison]) -> int:
    """The sign of a group's mean difference, or of its mean sign if units differ."""
    differences = [size(comparison) for comparison in group]
    if len({comparison.unit for comparison in group}) > 1:
        differences = [math.copysign(difference != 0, difference) for difference in differences]
    total = sum(differences)
    return (total > 0) - (total < 0)


def is_significant(p: float | None, count: int = 1) -> bool:
    """Whether `p` is significant for one of `count` tests."""
    return p is not None and p < LEVEL / count


def is_opposite(comparison: Comparison, count: int) -> bool:
    """Whether this comparison, one of `count`, is significantly opposite to the claim."""
    return is_significant(paired_p([-value for value in comparison.by_seed.values()]), count)


def evidence(comparisons: Sequence[Comparison], test: MeanTest | None, opposite: Sequence[Comparison]) -> str:
    """The sentences that explain a verdict."""
    printed = [comparison.printed for comparison in comparisons if comparison.printed is not None]
    if test is None and not printed:
        return "The paper prints no numbers of it either."
    if test is None:
        return f"In print, {sum(printed)} of {len(printed)} comparisons have the claimed sign."
    measured = [comparison for comparison in comparisons if comparison.difference is not None]
    agreeing = sum(size(comparison) > 0 for comparison in measured)
    in_print = f" (in print: {sum(printed)} of {len(printed)})" if printed else ""
    sentences = [
        f"{agreeing} of {len(measured)} comparisons have the claimed sign{in_print}.",
        test_sentence(measured, test),
    ]
    smallest = min(measured, key=size)
    if opposite:
        level = f"p < {LEVEL} / {len(measured)}"
        sentences.append(f"Significantly opposite ({level}): {comparison_list(opposite)}.")
    elif size(smallest) <= 0 and len(measured) > 1:
        sentences.append(f"Furthest from it: {comparison_list([smallest])}.")
    diverged = sum(comparison.diverged for comparison in comparisons)
    return " ".join(sentences + ([f"A run of {diverged} more comparisons diverged."] if diverged else []))


def test_sentence(measured: Sequence[Comparison], test: MeanTest) -> str:
    """The mean of the comparisons and the test of it."""
    units = {comparison.unit for comparison in measured}
    average = mean(size(comparison) for comparison in measured)
    start = f"Mean difference {signed(average)} {units.pop()}; {test.name}" if len(units) == 1 else test.name
    if test.p is None or test.opposite_p is None:
        return f"{start}: all seeds have the same difference, so there is no noise to test against."
    low = min(test.p, test.opposite_p)
    sign = "above" if test.p <= test.opposite_p else "below"
    return f"{start}, {sign} zero with p {'< 0.001' if low < 0.001 else f'= {low:.3f}'}."


def comparison_list(comparisons: Sequence[Comparison], limit: int = 3) -> str:
    """At most `limit` comparisons with their differences, the most opposite first."""
    by_size = sorted(comparisons, key=size)
    texts = [f"{comparison.name}, {signed(size(comparison))}" for comparison in by_size[:limit]]
    return "; ".join(texts + ([f"and {len(by_size) - limit} more"] if len(by_size) > limit else []))


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"{value:+.2f}".replace("-", "−")
