"""Verdicts on claims: the tests against tables and enumeration, and a constructed case for each verdict."""

import math
from collections.abc import Mapping, Sequence
from itertools import product

import pytest
import torch
from tests.reproduce.tables import a_paper, a_record, an_entry, fedbug, measured_with

from kedge.reproduce.claims import Judgment, groups, judge_claims
from kedge.reproduce.comparisons import comparisons
from kedge.reproduce.paper import Claim
from kedge.reproduce.significance import paired_p, sign_p, t_tail

COLUMNS = ("u", "v", "w", "x", "y", "z")
CLAIM = Claim("A is above B.", rows=(("A", "B"),))


def judgment(
    differences: Mapping[str, Sequence[float]],
    claim: Claim = CLAIM,
    printed: Sequence[float] = (1.0,) * len(COLUMNS),
) -> Judgment:
    """The verdict on A above B where A − B has these values, by column and seed; the print has `printed`."""
    entries = [an_entry("B", column, 70.0) for column in COLUMNS]
    entries += [an_entry("A", column, 70.0 + more) for column, more in zip(COLUMNS, printed, strict=True)]
    records = []
    for column, values in differences.items():
        for seed, value in enumerate(values):
            records.append(a_record(f"of A/{column}", seed, [(300, 0.7 + value / 100)]))
            records.append(a_record(f"of B/{column}", seed, [(300, 0.7)]))
    (found,) = judge_claims(measured_with(a_paper(entries, (claim,)), records))
    return found


@pytest.mark.parametrize(
    ("freedom", "t", "p"),
    [
        (1, 6.3138, 0.05), (2, 2.9200, 0.05), (3, 2.3534, 0.05), (4, 2.1318, 0.05), (9, 1.8331, 0.05),
        (10, 1.8125, 0.05), (30, 1.6973, 0.05), (1, 31.8205, 0.01), (2, 6.9646, 0.01), (5, 3.3649, 0.01),
        (2, 22.3271, 0.001), (7, 4.7853, 0.001), (3, 0.0, 0.5),
    ],
)  # fmt: skip
def test_the_tail_of_student_s_t_is_that_of_the_tables(freedom: int, t: float, p: float) -> None:
    assert t_tail(t, freedom) == pytest.approx(p, rel=1e-4)
    assert t_tail(-t, freedom) == pytest.approx(1 - p, rel=1e-4)


@pytest.mark.parametrize("freedom", range(1, 8))
def test_the_tail_of_student_s_t_is_the_integral_of_its_density(freedom: int) -> None:
    """With t = tan θ √ν the density is cos^(ν-1) θ dθ up to a factor."""
    t = 1.7
    angle = torch.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, 20001, dtype=torch.float64)
    half = torch.linspace(0, math.pi / 2, 20001, dtype=torch.float64)
    tail, upper = (torch.trapezoid(torch.cos(a) ** (freedom - 1), a) for a in (angle, half))
    assert t_tail(t, freedom) == pytest.approx(float(tail / upper) / 2, rel=1e-6)


def test_the_paired_test_is_worked_out_by_hand() -> None:
    """Mean 2 and standard deviation 1 over three seeds: t = 2√3, with two degrees of freedom."""
    t = 2 * math.sqrt(3)
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(0.5 * (1 - t / math.sqrt(2 + t * t)))
    assert paired_p([-1.0, -2.0, -3.0]) == pytest.approx(0.5 * (1 + t / math.sqrt(2 + t * t)))


@pytest.mark.parametrize("differences", [[], [1.0], [0.3, 0.3, 0.3], [0.0, 0.0]])
def test_there_is_no_test_without_noise_to_test_against(differences: list[float]) -> None:
    assert paired_p(differences) is None


@pytest.mark.parametrize("count", range(6))
def test_the_sign_test_counts_throws_of_a_coin(count: int) -> None:
    throws = list(product((0, 1), repeat=count))
    for right in range(count + 1):
        assert sign_p(right, count) == sum(sum(one) >= right for one in throws) / len(throws)


def test_a_claim_is_held_if_all_signs_are_right_and_the_mean_is_significant() -> None:
    found = judgment({column: (0.9, 1.1, 1.0 + 0.01 * n) for n, column in enumerate(COLUMNS)})
    assert (found.verdict, found.label) == ("held", "held")
    assert found.test is not None
    assert found.test.name == "paired t-test over 3 seeds"
    assert found.evidence == (
        "6 of 6 comparisons have the claimed sign (in print: 6 of 6). Mean difference +1.01 points; "
        "paired t-test over 3 seeds, above zero with p = 0.002."
    )


def test_a_wrong_sign_within_noise_keeps_a_claim_from_being_held() -> None:
    values: dict[str, Sequence[float]] = {column: (0.9, 1.1, 1.0) for column in COLUMNS}
    found = judgment(values | {"w": (-0.5, 0.3, -0.1)})
    assert found.verdict == "within noise"
    assert found.evidence.startswith("5 of 6 comparisons have the claimed sign")
    assert found.evidence.endswith("Furthest from it: A over B in w, −0.10.")


def test_right_signs_without_significance_are_within_noise() -> None:
    found = judgment({column: (0.1, 2.0) for column in COLUMNS})
    assert found.verdict == "within noise"
    assert "6 of 6" in found.evidence


def test_a_claim_is_not_held_if_the_mean_is_significantly_opposite() -> None:
    found = judgment({column: (-0.9, -1.1, -1.0) for column in COLUMNS})
    assert found.verdict == "not held"
    assert "below zero with p = 0.002" in found.evidence


def test_a_claim_is_not_held_if_one_comparison_is_significantly_opposite() -> None:
    values: dict[str, Sequence[float]] = {column: (2.9, 3.1, 3.0) for column in COLUMNS}
    found = judgment(values | {"w": (-1.01, -1.0, -1.02)})
    assert found.verdict == "not held"
    assert "Significantly opposite (p < 0.05 / 6): A over B in w, −1.01." in found.evidence


def test_the_level_of_a_single_comparison_is_divided_by_their_number() -> None:
    values: dict[str, Sequence[float]] = {column: (2.9, 3.1, 3.0) for column in COLUMNS}
    wrong = (-0.8, -1.2, -1.0)  # p = 0.0066, below 0.05 / 6
    assert judgment(values | {"w": wrong}).verdict == "not held"
    weaker = (-0.7, -1.3, -1.0)  # p = 0.014
    assert judgment(values | {"w": weaker}).verdict == "within noise"


def test_equal_differences_of_all_seeds_are_no_evidence() -> None:
    found = judgment({column: (1.0, 1.0) for column in COLUMNS})
    assert found.verdict == "within noise"
    assert "no noise to test against" in found.evidence


def test_nothing_measured_is_not_measured() -> None:
    found = judgment({}, printed=(1, 1, 1, -1, 0, 1))
    assert (found.verdict, found.label, found.test) == ("not measured", "not measured", None)
    assert found.evidence == "In print, 4 of 6 comparisons have the claimed sign."


def test_a_partial_verdict_says_how_much_was_measured() -> None:
    found = judgment({column: (0.9, 1.1, 1.0) for column in "uv"})
    assert found.label == "held (2 of 6 measured)"
    assert found.evidence.startswith("2 of 2 comparisons have the claimed sign (in print: 6 of 6).")


def test_the_print_may_contradict_the_claim_itself() -> None:
    found = judgment({column: (0.9, 1.1, 1.0) for column in COLUMNS}, printed=(1, 1, 1, 1, -1, 0))
    assert "(in print: 4 of 6)" in found.evidence


def test_lower_reverses_a_claim() -> None:
    claim = Claim("A is below B.", rows=(("A", "B"),), lower=True)
    values = {column: (-0.9, -1.1, -1.0) for column in COLUMNS}
    found = judgment(values, claim, printed=(-1,) * 6)
    assert (found.verdict, judgment(values).verdict) == ("held", "not held")
    assert "in print: 6 of 6" in found.evidence
    assert found.comparisons[0].name == "A under B in u"


@pytest.mark.slow
def test_one_seed_needs_five_groups_of_runs_with_the_right_sign() -> None:
    four = judgment({column: (1.0,) for column in COLUMNS[:4]})
    assert four.verdict == "within noise"  # 1/16
    five = judgment({column: (1.0,) for column in COLUMNS[:5]})
    assert five.verdict == "held"  # 1/32
    assert five.test is not None
    assert five.test.name == "one seed: sign test over 5 groups of runs"
    assert judgment({column: (-1.0,) for column in COLUMNS}).verdict == "not held"
    assert judgment({column: (-1.0,) for column in COLUMNS[:4]}).verdict == "within noise"


def test_one_seed_with_a_wrong_sign_is_within_noise() -> None:
    values = {column: (1.0,) for column in COLUMNS}
    assert judgment(values | {"w": (-0.1,)}).verdict == "within noise"


def test_comparisons_that_share_a_run_are_one_group() -> None:
    """FedBug with three ratios against the same vanilla run: 60 comparisons, 20 groups."""
    measured = fedbug(seeds=1)
    first, second = measured.paper.claims
    found = list(comparisons(first, measured))
    assert (len(found), len(groups(found))) == (60, 20)
    assert sorted(len(members) for members in groups(found)) == [3] * 20
    found = list(comparisons(second, measured))
    assert (len(found), len(groups(found))) == (20, 20)


def test_the_shipped_claims_are_counted_in_print() -> None:
    said = [one.evidence for one in judge_claims(fedbug(places=0))]
    values = {(one.block, one.row, one.column): one.value or 0.0 for one in fedbug(places=0).paper.entries}
    above = [
        value > values[block, "Vanilla", column]
        for (block, row, column), value in values.items()
        if row != "Vanilla"
    ]
    assert said[0].startswith(f"In print, {sum(above)} of {len(above)} comparisons")


@pytest.mark.parametrize(("fast", "verdict"), [(3, "held"), (290, "within noise")])
def test_a_target_that_was_not_reached_counts_as_the_last_round(fast: int, verdict: str) -> None:
    """The first reaches the target in round `fast` or a little later, the second in none of 300."""
    claim = Claim("A is faster.", rows=(("A", "B"),), lower=True)
    entries = [an_entry(row, "rounds", None, bound=">300", target=0.8) for row in "AB"]
    records = []
    for seed in range(3):
        reached = 300 if fast == 290 and seed == 2 else fast + 3 * seed
        records.append(a_record("of A/rounds", seed, [(reached, 0.85)]))
        records.append(a_record("of B/rounds", seed, [(300, 0.5)]))
    (found,) = judge_claims(measured_with(a_paper(entries, (claim,)), records))
    assert found.verdict == verdict
    assert "rounds; paired" in found.evidence
    assert "print" not in found.evidence


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("100", ">200", True), (">200", "200", False), (">200", "201", False), (">200", "250", None),
        ("not reached", "50", False),
        ("50", "not reached", True), ("not reached", "not reached", None), (">200", ">200", None),
        ("50", "50", False), ("", "50", None),
    ],
)  # fmt: skip
def test_printed_bounds_are_compared_as_far_as_they_go(
    first: str, second: str, expected: bool | None
) -> None:
    claim = Claim("A is faster.", rows=(("A", "B"),), lower=True)
    entries = [
        an_entry(row, "rounds", float(text), target=0.8)
        if text.isdigit()
        else an_entry(row, "rounds", None, bound=text, target=0.8)
        for row, text in (("A", first), ("B", second))
    ]
    (one,) = comparisons(claim, measured_with(a_paper(entries, (claim,)), []))
    assert one.printed is expected


def test_a_comparison_with_a_run_that_diverged_is_not_measured() -> None:
    entries = [an_entry(row, "x", 1.0) for row in "AB"]
    records = [a_record("of A/x", 0, [(300, 0.8)]), a_record("of B/x", 0, [(10, 0.1)], diverged=True)]
    (found,) = judge_claims(measured_with(a_paper(entries, (CLAIM,)), records))
    assert found.verdict == "not measured"
    assert found.comparisons[0].diverged
