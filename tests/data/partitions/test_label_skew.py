import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kedge
from kedge.core.errors import RequestError
from kedge.data.partitions.label_skew import cut_points, filled_clients
from kedge.data.partitions.partition import Dirichlet, DirichletClasses

Labels = NDArray[np.int64]
TEN = np.repeat(np.arange(10), 5000)  # as many as CIFAR-10, in the worst order
ORACLES = Path(kedge.__file__).parent / "audit/oracles.json"


def counts(labels: Labels, clients: list[Labels]) -> Labels:
    return np.array([np.bincount(labels[own], minlength=int(labels.max()) + 1) for own in clients])


def published_loop(labels: Labels, clients: int, alpha: float, seed: int) -> Labels:
    """Step 3 of P1 as published: draw a client, skip it if full, draw its class among those left.

    FedDyn's code redraws a class until one has samples left. This has the same distribution, but takes very
    long if the classes left have little mass.
    """
    chance = np.random.default_rng(seed)
    priors = chance.dirichlet([alpha] * (int(labels.max()) + 1), clients)
    stock, size = np.bincount(labels), labels.size // clients
    held = np.zeros(priors.shape, dtype=np.int64)
    while held.sum() < clients * size:
        client = chance.integers(clients)
        if held[client].sum() == size:
            continue
        left = priors[client] * (stock > 0)
        chosen = chance.choice(left.size, p=left / left.sum())
        stock[chosen] -= 1
        held[client, chosen] += 1
    return held


@pytest.mark.slow
def test_dirichlet_has_the_law_of_the_published_loop() -> None:
    """Mean over runs of Σ_k (share of class k)², which late fills change, within four standard errors."""
    labels = np.repeat(np.arange(4), 20)

    def concentration(held: Labels) -> float:
        return float(((held / held.sum(axis=1, keepdims=True)) ** 2).sum(axis=1).mean())

    ours = [concentration(counts(labels, Dirichlet(8, 0.5)(labels, seed))) for seed in range(400)]
    theirs = [concentration(published_loop(labels, 8, 0.5, seed)) for seed in range(400)]
    error = np.sqrt((np.var(ours) + np.var(theirs)) / 400)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error
    assert error < 0.01


@given(clients=st.integers(1, 30), samples=st.integers(30, 200), alpha=st.floats(1e-4, 100))
def test_dirichlet_gives_equal_sizes(clients: int, samples: int, alpha: float) -> None:
    parts = Dirichlet(clients, alpha)(np.arange(samples) % 7, 0)
    assert {len(own) for own in parts} == {samples // clients}


def test_dirichlet_follows_the_priors_while_all_classes_are_in_stock() -> None:
    """With enough samples client i draws from q_i; χ² of 2 degrees of freedom exceeds 21 with p = 3e-5."""
    priors = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    pools = [np.arange(20_000) + 20_000 * k for k in range(3)]
    held = filled_clients(np.array([5000, 5000]), pools, priors, seed=0)
    for own, prior in zip(held, priors, strict=True):
        drawn = np.bincount(own // 20_000, minlength=3)
        assert ((drawn - 5000 * prior) ** 2 / (5000 * prior)).sum() < 21


def test_dirichlet_restricts_the_prior_to_the_classes_in_stock() -> None:
    """One client, q = (0.8, 0.15, 0.05), class 0 has 10: the others are drawn 3 to 1, as by rejection."""
    pools = [np.arange(10), np.arange(10, 10_010), np.arange(10_010, 20_010)]
    (own,) = filled_clients(np.array([8010]), pools, np.array([[0.8, 0.15, 0.05]]), seed=0)
    assert (own < 10).sum() == 10
    assert abs((own >= 10_010).sum() / 8000 - 0.25) < 0.025


def test_dirichlet_takes_any_class_in_stock_where_the_prior_underflows() -> None:
    pools = [np.arange(5), np.arange(5, 1005), np.arange(1005, 2005)]
    (own,) = filled_clients(np.array([1005]), pools, np.array([[1.0, 0.0, 0.0]]), seed=0)
    assert (own < 5).sum() == 5
    assert abs((own >= 1005).sum() - 500) < 80


def test_dirichlet_clients_differ_more_the_smaller_alpha() -> None:
    def largest_share(alpha: float) -> float:
        held = counts(TEN, Dirichlet(50, alpha)(TEN, 0))
        return float((held.max(axis=1) / held.sum(axis=1)).mean())

    shares = [largest_share(alpha) for alpha in (0.01, 0.1, 0.3, 1.0, 100.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6
    assert shares[-1] < 0.2


def test_dirichlet_with_sigma_gives_lognormal_sizes_and_every_sample() -> None:
    sizes = np.array([len(own) for own in Dirichlet(200, 0.3, sigma=0.4)(TEN, 0)])
    assert sizes.sum() == TEN.size
    assert abs(np.log(sizes).std() - 0.4) < 0.08


def test_cut_gives_the_published_oracle() -> None:
    """Both cases of partition_per_class_dirichlet in oracles.json, computed by hand there."""
    points = cut_points(np.array([0.5, 0.3, 0.2]), np.array([40, 10, 10]), 20, 10, cap=True)
    assert points.tolist() == [0, 6]
    points = cut_points(np.array([0.5, 0.25, 0.2, 0.05]), np.array([19, 20, 0, 7]), 20, 11, cap=True)
    assert points.tolist() == [7, 7, 10]


def test_cut_agrees_with_the_oracle_file() -> None:
    oracle = json.loads(ORACLES.read_text())["partition_per_class_dirichlet"]
    for case in (oracle, oracle["second_case"]):
        inputs = case["inputs"]
        points = cut_points(
            np.array(inputs["proportions_drawn"]),
            np.array(inputs["current_client_sizes"]),
            inputs["N/n"],
            inputs["class_size"],
            cap=True,
        )
        assert points.tolist() == case["expected"]["cut_points"]
        added = np.diff(points, prepend=0, append=inputs["class_size"])
        assert added.tolist() == case["expected"]["sizes_added"]


def test_cut_without_cap_uses_the_proportions_as_drawn() -> None:
    assert cut_points(np.array([0.5, 0.3, 0.2]), np.array([40, 10, 10]), 20, 10, cap=False).tolist() == [5, 8]


def test_cut_gives_nothing_to_a_full_last_client() -> None:
    """The last client gets the rest, which must be empty: a sum of 0.99… would leave it one sample."""
    for size in (10, 49, 5000):
        shares = np.full(50, 0.1 / 3)
        held = np.array([0] * 49 + [99])
        assert cut_points(shares, held, 20, size, cap=True)[-1] == size


def test_cut_is_even_among_clients_with_room_where_their_proportions_underflow() -> None:
    assert cut_points(np.array([1.0, 0.0, 0.0]), np.array([20, 0, 0]), 20, 10, cap=True).tolist() == [0, 5]


@settings(max_examples=25)
@given(clients=st.integers(2, 20), alpha=st.floats(0.3, 10), seed=st.integers(0, 99))
def test_capped_classes_stay_below_the_fair_share_and_one_class(
    clients: int, alpha: float, seed: int
) -> None:
    labels = np.arange(2000) % 10
    sizes = counts(labels, DirichletClasses(clients, alpha, minimum=1)(labels, seed)).sum(axis=1)
    assert sizes.sum() == 2000
    assert sizes.max() < 2000 / clients + 200


def test_classes_are_redrawn_until_every_client_has_the_minimum() -> None:
    """PFLlib's setting, where the first forty draws fail: 60,000 samples, 100 clients, alpha 0.1, 40 each."""
    labels = np.repeat(np.arange(10), 6000)
    sizes = [len(own) for own in DirichletClasses(100, 0.1, minimum=40)(labels, 1)]
    assert min(sizes) >= 40
    assert sum(sizes) == 60_000


def test_five_hundred_clients_of_few_classes_are_partitioned_quickly() -> None:
    start = time.monotonic()
    clients = Dirichlet(500, 0.05)(TEN, 0)
    assert np.unique(np.concatenate(clients)).size == TEN.size
    assert {len(own) for own in clients} == {100}
    assert time.monotonic() - start < 10


@pytest.mark.slow
def test_five_hundred_clients_that_cannot_have_the_minimum_are_refused_in_bounded_time() -> None:
    start = time.monotonic()
    with pytest.raises(
        RequestError,
        match=r"clients=500, alpha=0\.05, minimum=10.*in 2000 draws of 50000 samples the smallest client "
        r"held at most \d, need 10\. Raise alpha, lower minimum, use fewer clients",
    ):
        DirichletClasses(500, 0.05)(TEN, 0)
    assert time.monotonic() - start < 30
