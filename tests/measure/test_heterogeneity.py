"""The heterogeneity of partitions against cases by hand, and its terms against all partitions of a kind."""

from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kedge.core.errors import RequestError
from kedge.measure.heterogeneity import Counts, chance_distance, distances, heterogeneity

PARTITIONS = arrays(
    np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 30)
).filter(lambda counts: counts.sum() > 0)


def test_one_class_each_is_one() -> None:
    found = heterogeneity(np.array([[7, 0, 0], [0, 7, 0], [0, 0, 7]]))
    assert found.value == pytest.approx(1, abs=1e-12)
    assert found.distance == pytest.approx(2 / 3, abs=1e-12)
    assert found.most == pytest.approx(2 / 3, abs=1e-12)


def test_one_class_each_is_one_whatever_the_sizes_and_classes() -> None:
    """q = (0.6, 0.4): distances 0.4, 0.6, 0.4 with weights 0.5, 0.4, 0.1, so 0.48 = 1 − 0.36 − 0.16."""
    found = heterogeneity(np.array([[5, 0], [0, 4], [1, 0]]))
    assert found.distance == pytest.approx(0.48, abs=1e-12)
    assert found.most == pytest.approx(0.48, abs=1e-12)
    assert found.value == pytest.approx(1, abs=1e-12)


def test_equal_clients_are_more_even_than_chance() -> None:
    """Two of each class to two clients: a client's count of a class is 0, 1, 2 with chances 1/6, 4/6, 1/6.

    So E|n_ic − 1| = 1/3, by chance the distance is ½ · 2 · (1/3) / 2 = 1/6, and (0 − 1/6) / (1/2 − 1/6) = −½.
    """
    found = heterogeneity(np.array([[1, 1], [1, 1]]))
    assert found == pytest.approx((-0.5, 0, 1 / 6, 0.5), abs=1e-12)


def test_the_distance_is_the_share_to_be_exchanged() -> None:
    """Both classes are equally frequent; 3 of 10 and 3 of 50 samples would need the other class."""
    counts = np.array([[8, 2], [22, 28]])
    assert distances(counts) == pytest.approx([0.3, 0.06], abs=1e-12)
    assert heterogeneity(counts).distance == pytest.approx((10 * 0.3 + 50 * 0.06) / 60, abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "sizes"),
    [
        ((0, 0, 0, 1, 1, 2), (1, 2, 3)),
        ((0, 0, 0, 0, 0, 1), (3, 3)),
        ((0, 1, 2, 3, 4, 5), (4, 2)),
        ((0, 0, 1, 1, 1, 1, 2), (1, 1, 5)),
        ((0, 0, 0, 0), (1, 3)),
        ((1, 1, 2, 2), (4,)),
    ],
)
def test_chance_is_the_mean_over_all_deals(labels: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    ends = np.cumsum(sizes)[:-1]
    found = []
    for order in permutations(labels):
        counts = np.array([np.bincount(own, minlength=6) for own in np.split(np.array(order), ends)])
        found.append(heterogeneity(counts).distance)
    totals = np.bincount(labels, minlength=6)
    assert chance_distance(np.array(sizes), totals) == pytest.approx(float(np.mean(found)), abs=1e-12)


def test_a_random_deal_of_many_small_clients_is_near_zero() -> None:
    """With 6 samples of 10 classes the distance is large for every partition; the value is not."""
    labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
    counts = np.array([np.bincount(own, minlength=10) for own in labels.reshape(10_000, 6)])
    found = heterogeneity(counts)
    assert found.distance > 0.5
    assert abs(found.value) < 0.005


def test_a_large_deal_tends_to_the_binomial() -> None:
    """De Moivre: E|X − np| = 2ν·C(n, ν)·p^ν·(1 − p)^(n − ν + 1), ν = ⌊np⌋ + 1; a distance is that / n.

    Ten of a million samples, half of them in each class: ν = 6, C(10, 6) = 210.
    """
    deviation = 2 * 6 * 210 * 0.5**6 * 0.5**5
    chance = chance_distance(np.full(100_000, 10), np.array([500_000, 500_000]))
    assert chance == pytest.approx(deviation / 10, rel=2e-5)


@pytest.mark.parametrize(
    "counts",
    [
        np.array([[4], [9]]),  # one class
        np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]),  # one sample each
        np.array([[3, 4, 5]]),  # one client
    ],
)
def test_where_every_deal_is_alike_the_number_is_zero(counts: Counts) -> None:
    assert heterogeneity(counts).value == 0


def test_a_client_without_samples_changes_nothing() -> None:
    counts = np.array([[8, 2], [22, 28]])
    assert heterogeneity(np.vstack([counts, [[0, 0]]])) == pytest.approx(heterogeneity(counts), abs=1e-12)
    assert distances(np.vstack([counts, [[0, 0]]]))[2] == 0


@given(PARTITIONS, st.randoms(use_true_random=False))
def test_the_order_of_clients_and_classes_does_not_matter(counts: Counts, chance: Random) -> None:
    rows, columns = (chance.sample(range(size), size) for size in counts.shape)
    assert heterogeneity(counts[rows][:, columns]) == pytest.approx(heterogeneity(counts), abs=1e-9)


@given(PARTITIONS)
def test_no_deal_exceeds_one_class_each(counts: Counts) -> None:
    found = heterogeneity(counts)
    assert found.value <= 1 + 1e-9
    assert -1e-12 <= found.distance <= found.most + 1e-12
    assert -1e-12 <= found.chance <= found.most + 1e-9


@pytest.mark.parametrize(
    "counts", [np.array([1, 2]), np.array([[1.0]]), np.array([[1, -1]]), np.zeros((2, 3), dtype=np.int64)]
)
def test_what_is_no_deal_is_refused(counts: Counts) -> None:
    with pytest.raises(RequestError, match=r"need whole numbers ≥ 0 of shape \[clients, classes\]"):
        heterogeneity(counts)
