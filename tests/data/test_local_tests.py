"""Local tests: results computed by hand, and properties of every split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kedge
from kedge.config.experiment import resolve
from kedge.config.federations import federation_of
from kedge.core.errors import RequestError
from kedge.data.dataset import Dataset, Source
from kedge.data.federation import Federation, federate
from kedge.data.local_tests import LocalTests, largest_remainder, matched_tests, partitioned_labels
from kedge.data.partitions.partition import Dirichlet, DirichletClasses, Iid

Labels = NDArray[np.int64]
SMALL: dict[str, Any] = {
    "rounds": 1,
    "model": "mlp",
    "partition.clients": 8,
    "participation.per_round": 2,
    "training.epochs": 1,
    "engine.name": "sequential",
}


def source(train: list[int], test: list[int], classes: int | None = None) -> Source:
    """Samples with their own number as the only feature: training from 0, test from 1000."""
    x = np.arange(len(train), dtype=np.float32)[:, None], np.arange(1000, 1000 + len(test))[:, None]
    held = Dataset(x[1].astype(np.float32), test)
    return Source("mine", Dataset(x[0], train), held, classes or max(train + test) + 1)


def numbers(federation: Federation, own: Labels) -> list[int]:
    return [int(v) for v in federation.pool.x[torch.from_numpy(own)][:, 0]]


def test_merged_splits_each_client_s_share_of_both_parts_75_to_25() -> None:
    """Clients of 8 and 4 of the 6 training and 6 test samples: 6 + 2 and 3 + 1."""
    data = source([0, 1] * 3, [1, 0] * 3)
    assert partitioned_labels(data, "merged").tolist() == [0, 1] * 3 + [1, 0] * 3
    clients = [np.array([0, 1, 2, 3, 6, 7, 8, 9]), np.array([4, 5, 10, 11])]
    found = federate(data, clients, 0.25, 0, "merged")
    assert [len(own) for own in found.clients] == [6, 3]
    assert [len(own) for own in found.local_tests] == [2, 1]
    for number, own in enumerate(clients):
        both = np.concatenate([found.clients[number], found.local_tests[number]])
        np.testing.assert_array_equal(np.sort(both), own)
    everything = [n for own in (*found.clients, *found.local_tests) for n in numbers(found, own)]
    assert sorted(everything) == [*range(6), *range(1000, 1006)]


def test_merged_s_common_test_is_the_local_tests_and_disjoint_from_training() -> None:
    data = source([0, 1] * 20, [1, 0] * 10)
    found = federate(data, Iid(5)(partitioned_labels(data, "merged"), 3), 0.25, 3, "merged")
    assert found.test is not None
    held = [n for own in found.local_tests for n in numbers(found, own)]
    assert [int(v) for v in found.test.x[:, 0]] == held
    assert len(held) == 15
    trained = {n for own in found.clients for n in numbers(found, own)}
    assert not trained & set(held)
    assert any(n >= 1000 for n in trained)  # clients train on the test part


def test_merged_is_random_and_not_stratified() -> None:
    """A quarter of 40 of each of two classes, stratified, would be 5 and 5 for every seed."""
    data = source([0, 1] * 10, [0, 1] * 10)
    labels = partitioned_labels(data, "merged")
    found = [federate(data, [np.arange(40)], 0.25, seed, "merged").local_tests[0] for seed in range(20)]
    assert all(len(own) == 10 for own in found)
    assert len({int(labels[own].sum()) for own in found}) > 2


def test_a_client_with_one_sample_trains_on_it_and_has_no_local_test() -> None:
    data = source([0, 1, 1], [0])
    for local in ("split", "merged"):
        found = federate(data, [np.array([0]), np.array([1, 2])], 0.5, 0, local)
        assert [len(own) for own in found.clients] == [1, 1]
        assert [len(own) for own in found.local_tests] == [0, 1]
    alone = federate(data, [np.array([0])], 0.5, 0, "merged")
    assert alone.test is None


def test_split_leaves_the_common_test_set_and_the_pool_as_they_are() -> None:
    data = source([0, 1] * 10, [0, 1])
    found = federate(data, [np.arange(20)], 0.2)
    assert found.test is data.test
    assert found.pool is data.train
    assert [len(found.clients[0]), len(found.local_tests[0])] == [16, 4]


def test_matched_by_hand() -> None:
    """Class 0: 3 and 1 training samples, 8 test samples: 6 and 2. Class 1: 1 and 1, 3 test samples: 2 and 1,
    or 1 and 2. No client has the training sample of class 2, so its 4 test samples are not assigned."""
    data = source([0, 0, 0, 1, 0, 1, 2], [0] * 8 + [1] * 3 + [2] * 4)
    first, second = np.array([0, 1, 2, 3]), np.array([4, 5])
    sides = set()
    for seed in range(20):
        found = federate(data, [first, second], 0.0, seed, "matched")
        np.testing.assert_array_equal(found.clients[0], first)
        np.testing.assert_array_equal(found.clients[1], second)
        counts = [np.bincount(found.pool.y[own].numpy(), minlength=3).tolist() for own in found.local_tests]
        assert [row[0] for row in counts] == [6, 2]
        assert [row[2] for row in counts] == [0, 0]
        assert sum(row[1] for row in counts) == 3
        sides.add((counts[0][1], counts[1][1]))
        given = [n for own in found.local_tests for n in numbers(found, own)]
        assert sorted(given) == list(range(1000, 1011))
    assert sides == {(2, 1), (1, 2)}  # the tie is broken at random


def test_matched_keeps_the_common_test_set_and_holds_its_samples_once() -> None:
    data = source([0, 1] * 4, [0, 1, 1])
    found = federate(data, [np.arange(8)], local="matched")
    assert found.test is not None
    assert torch.equal(found.test.x, data.test.x)
    assert torch.equal(found.test.y, data.test.y)
    assert len(found.pool) == 11
    assert found.test.x.data_ptr() == found.pool.x[8:].data_ptr()  # a view of the pool, not a copy


def test_matched_takes_other_samples_with_another_seed_and_the_same_with_the_same() -> None:
    data = source([0, 1] * 10, [0, 1] * 20)
    clients = Iid(2)(partitioned_labels(data, "matched"), 0)
    first, again, other = (matched_tests(data, clients, seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_matched_gives_clients_of_one_sample_at_most_their_share() -> None:
    """Four clients of one sample each share two test samples: two of them have one, two have none."""
    data = source([0] * 4, [0] * 2)
    found = federate(data, [np.array([n]) for n in range(4)], local="matched")
    assert sorted(len(own) for own in found.local_tests) == [0, 0, 1, 1]


def test_largest_remainder_by_hand() -> None:
    """4 samples over 5, 3, 2: 2.0, 1.2, 0.8. 10 over 1, 1, 1: one is random. A weight of 0 gets none."""
    assert largest_remainder(4, np.array([5, 3, 2]), 0, 0).tolist() == [2, 1, 1]
    assert sorted(largest_remainder(10, np.array([1, 1, 1]), 0, 0).tolist()) == [3, 3, 4]
    assert largest_remainder(7, np.array([0, 1, 0]), 0, 0).tolist() == [0, 7, 0]
    assert largest_remainder(0, np.array([2, 1]), 0, 0).tolist() == [0, 0]


@settings(max_examples=60)
@given(
    train=st.lists(st.integers(0, 4), min_size=8, max_size=60),
    test=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    clients=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_matched_tests_have_the_training_proportions_to_within_one_sample(
    train: list[int], test: list[int], clients: int, seed: int
) -> None:
    data = source(train, test, 5)
    held = Dirichlet(clients, 0.3)(partitioned_labels(data, "matched"), seed)
    found = federate(data, held, 0.0, seed, "matched")
    counts = np.array([np.bincount(found.pool.y[own].numpy(), minlength=5) for own in found.clients])
    tests = np.array([np.bincount(found.pool.y[own].numpy(), minlength=5) for own in found.local_tests])
    there, total = np.bincount(test, minlength=5), counts.sum(axis=0)
    fair = there * counts / np.maximum(total, 1)
    assert (abs(tests - fair) < 1).all()
    np.testing.assert_array_equal(tests.sum(axis=0), np.where(total > 0, there, 0))
    given_out = np.concatenate(found.local_tests)
    assert np.unique(given_out).size == given_out.size
    assert not given_out.size or given_out.min() >= len(train)  # none of the training samples


@settings(max_examples=40)
@given(
    samples=st.integers(20, 80), share=st.floats(0.01, 0.9), clients=st.integers(1, 6), seed=st.integers(0, 9)
)
@pytest.mark.parametrize("local", ["split", "merged"])
def test_no_sample_is_lost_or_used_twice(
    local: LocalTests, samples: int, share: float, clients: int, seed: int
) -> None:
    data = source([n % 3 for n in range(samples)], [n % 3 for n in range(10)])
    labels = partitioned_labels(data, local)
    held = DirichletClasses(clients, 1.0, minimum=1)(labels, seed)
    found = federate(data, held, share, seed, local)
    everyone = np.concatenate([*found.clients, *found.local_tests])
    np.testing.assert_array_equal(np.sort(everyone), np.arange(labels.size))
    for own, train, test in zip(held, found.clients, found.local_tests, strict=True):
        assert len(train) >= 1
        assert abs(len(test) - share * len(own)) <= 1
        assert (np.diff(train) > 0).all()
        assert (np.diff(test) > 0).all()


@pytest.mark.parametrize(
    ("local", "share", "message"),
    [
        ("merged", 0.0, r"local = 'merged' with local_test = 0: .* Set local_test.*PFLlib: 0\.25"),
        ("matched", 0.2, r"local = 'matched' with local_test = 0\.2: .* Set local_test = 0"),
        ("split", 1.0, r"local_test = 1\.0: need 0 ≤ local_test < 1"),
        ("merged", -0.1, r"local_test = -0\.1: need 0 ≤ local_test < 1"),
    ],
)
def test_ways_that_make_no_sense_are_refused(local: LocalTests, share: float, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        federate(source([0, 1], [0]), [np.arange(2)], share, 0, local)


def test_in_a_run_with_merged_tests_global_and_local_metrics_are_of_the_same_samples() -> None:
    ways = {**SMALL, "evaluation.local": "merged", "evaluation.local_test": 0.25}
    line = kedge.run("quickstart", **ways).history[-1]
    assert line["distributed.global.accuracy"] == line["distributed.local.accuracy"]
    assert line["distributed.global.loss"] == pytest.approx(line["distributed.local.loss"], rel=1e-6)


def test_in_a_run_matched_tests_leave_the_common_test_set_and_the_training_alone() -> None:
    """The partition is the same and no training sample is held out, so the model and its global accuracy are
    those of a run without local tests; the local tests are the whole test set, with the same average."""
    without: dict[str, Any] = {**SMALL, "evaluation.local_test": 0.0}
    plain = kedge.run("quickstart", **without)
    with_tests = kedge.run("quickstart", **{**without, "evaluation.local": "matched"})
    assert with_tests.accuracy == plain.accuracy
    assert all(torch.equal(with_tests.model[k], v) for k, v in plain.model.items())
    line = with_tests.history[-1]
    assert line["distributed.local.accuracy"] == pytest.approx(line["distributed.global.accuracy"])
    assert not [name for name in plain.cells if ".local." in name]


def test_natural_clients_get_the_test_part_if_its_keys_are_known(tmp_path: Path) -> None:
    """Subjects 0…3 are in the training part, 4 and 5 in the test part: merged, there are six clients."""
    x, y = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32), np.arange(60) % 3
    parts: dict[str, Any] = {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}
    subjects: dict[str, Any] = {"subject_train": np.arange(40) % 4, "subject_test": 4 + np.arange(20) % 2}
    np.savez(tmp_path / "mine.npz", **parts, **subjects)
    document: dict[str, Any] = {
        "name": "mine",
        "data": {"name": "mine", "path": str(tmp_path)},
        "partition": "natural",
        "evaluation": {"local": "merged", "local_test": 0.25},
    }
    dealt = federation_of(resolve(document))
    assert [len(own) for own in dealt.clients] == [8, 8, 8, 8, 8, 8]
    owners = np.concatenate([subjects["subject_train"], subjects["subject_test"]])
    for client, (own, test) in enumerate(zip(dealt.clients, dealt.local_tests, strict=True)):
        assert set(owners[own]) == set(owners[test]) == {client}


def test_natural_clients_cannot_be_dealt_a_test_part_without_keys(tmp_path: Path) -> None:
    ways: dict[str, Any] = {
        "data": {"name": "mine", "path": str(tmp_path)},
        "model": "mlp",
        "partition": "natural",
        "evaluation.local": "merged",
        "evaluation.local_test": 0.25,
    }
    x, y = np.ones((8, 2)), np.arange(8) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, subject_train=y)
    with pytest.raises(RequestError, match=r"'subject' for training samples only.*'split' or 'matched'"):
        kedge.run("quickstart", **ways)
