import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.golden import partitions as golden

from kedge.core.errors import RequestError
from kedge.data.partitions.draws import lognormal_sizes
from kedge.data.partitions.partition import (
    PARTITIONS,
    Dirichlet,
    DirichletClasses,
    Iid,
    Natural,
    Partition,
    Quantity,
    Shards,
)

Labels = NDArray[np.int64]
TEN = np.repeat(np.arange(10), 5000)  # as many as CIFAR-10, in the worst order


def counts(labels: Labels, clients: list[Labels]) -> Labels:
    return np.array([np.bincount(labels[own], minlength=int(labels.max()) + 1) for own in clients])


def assert_valid(clients: list[Labels], samples: int) -> None:
    everyone = np.concatenate(clients)
    assert all(own.dtype == np.int64 and own.size and (np.diff(own) > 0).all() for own in clients)
    assert np.unique(everyone).size == everyone.size
    assert everyone.min() >= 0
    assert everyone.max() < samples


partitions = st.integers(1, 8).flatmap(
    lambda m: st.sampled_from(
        [
            Iid(m),
            Dirichlet(m, 0.3),
            Dirichlet(m, 1e-3, sigma=0.5),
            DirichletClasses(m, 1.0, minimum=1),
            DirichletClasses(m, 1.0, cap=False, minimum=1),
            Shards(m, 2),
            Quantity(m, 1.0),
        ]
    )
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    partition=partitions,
    labels=st.lists(st.integers(0, 6), min_size=16, max_size=80),
    seed=st.integers(0, 99),
)
def test_every_partition_is_disjoint_in_range_never_empty_and_repeatable(
    partition: Partition, labels: list[int], seed: int
) -> None:
    given_labels = np.array(labels)
    try:
        clients = partition(given_labels, seed)
    except RequestError as error:
        assume(
            "draws" not in str(error)
        )  # an error because the minimum cannot be reached is also a valid result
        raise
    assert_valid(clients, given_labels.size)
    for own, again in zip(clients, partition(given_labels, seed), strict=True):
        np.testing.assert_array_equal(own, again)


@pytest.mark.parametrize(
    "partition", [Iid(5), Dirichlet(5, 0.3), DirichletClasses(5, 1.0), Shards(5), Quantity(5, 0.5)]
)
def test_another_seed_gives_another_partition(partition: Partition) -> None:
    labels = np.arange(500) % 10
    assert golden.fingerprint(partition(labels, 0)) != golden.fingerprint(partition(labels, 1))


def test_iid_gives_every_client_the_same_number_per_class_where_that_divides() -> None:
    assert (counts(TEN, Iid(100, stratified=True)(TEN, 0)) == 50).all()
    assert not (counts(TEN, Iid(100)(TEN, 0)) == 50).all()
    with pytest.raises(RequestError, match="cannot be divided equally"):
        Iid(7, stratified=True)(TEN, 0)


def test_iid_gives_out_everything_in_sizes_equal_up_to_one() -> None:
    clients = Iid(7)(np.arange(100) % 3, 0)
    assert sorted(len(own) for own in clients) == [14] * 5 + [15] * 2


def test_shards_give_each_client_few_classes() -> None:
    clients = Shards(100, 2)(TEN, 0)
    assert_valid(clients, TEN.size)
    assert {len(own) for own in clients} == {500}
    assert ((counts(TEN, clients) > 0).sum(axis=1) <= 2).all()


@given(
    samples=st.integers(1, 300),
    clients=st.integers(1, 300),
    sigma=st.floats(0, 100),
    seed=st.integers(0, 99),
)
def test_lognormal_sizes_use_every_sample_and_leave_nobody_empty(
    samples: int, clients: int, sigma: float, seed: int
) -> None:
    assume(clients <= samples)
    sizes = lognormal_sizes(samples, clients, sigma, seed)
    assert sizes.sum() == samples
    assert sizes.min() >= 1


def test_quantity_without_spread_gives_equal_sizes() -> None:
    assert {len(own) for own in Quantity(10, 0.0)(TEN, 0)} == {5000}


def test_natural_makes_one_client_per_key_in_order() -> None:
    clients = Natural()(np.zeros(5, dtype=np.int64), 0, np.array(["b", "a", "b", "c", "a"]))
    assert [own.tolist() for own in clients] == [[1, 4], [0, 2], [3]]


def test_partitions_and_local_tests_are_the_ones_of_old() -> None:
    """Golden values from tests/golden/partitions.py: every experiment on every platform depends on them."""
    assert golden.computed() == json.loads(golden.FILE.read_text())


def test_every_partition_has_a_golden_row() -> None:
    named = {name.partition(",")[0] for name in golden.CASES}
    assert named == set(PARTITIONS) - {"saved"}  # it draws nothing


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("iid", {"clients": 0}, r"Iid\(clients=0\): need a whole number of at least 1"),
        ("iid", {"clients": 2.5}, r"Iid\(clients=2\.5\): need a whole number"),
        ("dirichlet", {"clients": 0, "alpha": 1.0}, r"Dirichlet\(clients=0\)"),
        ("dirichlet", {"clients": 5, "alpha": 0.0}, r"alpha=0\.0\): need a finite alpha > 0; small alpha"),
        ("dirichlet", {"clients": 5, "alpha": math.inf}, r"alpha=inf.*use the partition 'iid'"),
        ("dirichlet", {"clients": 5, "alpha": math.nan}, r"alpha=nan"),
        ("dirichlet", {"clients": 5, "alpha": 1.0, "sigma": -1.0}, r"sigma=-1\.0\): need 0 ≤ sigma.*equal"),
        ("dirichlet-classes", {"clients": 5, "alpha": -1.0}, r"DirichletClasses\(alpha=-1\.0\)"),
        (
            "dirichlet-classes",
            {"clients": 5, "alpha": 1.0, "minimum": 0},
            r"minimum=0\): need a whole number of at least 1",
        ),
        ("dirichlet-classes", {"clients": -1, "alpha": 1.0}, r"DirichletClasses\(clients=-1\)"),
        (
            "shards",
            {"clients": 5, "per_client": 0},
            r"Shards\(per_client=0\): need a whole number of at least 1",
        ),
        ("quantity", {"clients": 5, "sigma": math.nan}, r"Quantity\(sigma=nan\): need 0 ≤ sigma"),
    ],
)
def test_a_wrong_request_is_refused_at_construction(
    name: str, arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        PARTITIONS[name](**arguments)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            Iid(11),
            r"Iid\(clients=11\): 10 samples given, at least 11 needed.*Use fewer clients or more samples",
        ),
        (Dirichlet(11, 1.0), r"Dirichlet\(clients=11\): 10 samples given"),
        (DirichletClasses(11, 1.0, minimum=1), r"DirichletClasses\(clients=11\): 10 samples given"),
        (DirichletClasses(3, 1.0, minimum=4), r"minimum·clients = 12 ≤ samples\. Lower minimum to at most 3"),
        (Shards(6, 2), r"Shards\(clients=6\): 10 samples given, at least 12 needed"),
        (Quantity(11, 1.0), r"Quantity\(clients=11\): 10 samples given"),
        (Natural(), r"Natural: no keys given; need one key per sample\. Use a dataset that has keys"),
    ],
)
def test_a_request_that_the_data_cannot_meet_is_refused(partition: Partition, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        partition(np.arange(10) % 2, 0)


def test_labels_that_are_no_list_of_integers_are_refused() -> None:
    with pytest.raises(RequestError, match=r"labels are int64 of shape \(2, 2\); need integers"):
        Iid(1)(np.zeros((2, 2), dtype=np.int64), 0)


def test_natural_refuses_keys_of_another_length() -> None:
    with pytest.raises(RequestError, match=r"keys of shape \(3,\) for 10 samples; need one key per sample"):
        Natural()(np.arange(10), 0, np.arange(3))


def test_a_seed_out_of_range_is_refused() -> None:
    with pytest.raises(RequestError, match="seed=-1"):
        Iid(2)(np.arange(10), -1)
