"""The share of each worker: all workers fit side by side, on machines and on GPUs."""

import pytest

from kedge.core.errors import RequestError
from kedge.engines.ray.shares import Machine, Share, worker_share


@pytest.mark.parametrize(
    ("workers", "expected"),
    [(1, Share(16.0, 1.0)), (2, Share(8.0, 0.5)), (3, Share(5.3333, 0.3333)), (6, Share(2.6666, 0.1666))],
    ids=str,
)
def test_several_workers_share_one_gpu_by_fractions_that_fit(workers: int, expected: Share) -> None:
    found = worker_share([Machine(16, 1)], workers, on_gpus=True)
    assert found == expected
    assert workers * found.gpus <= 1
    assert workers * found.cpus <= 16


@pytest.mark.parametrize(("workers", "gpus"), [(2, 1.0), (4, 1.0), (5, 0.5), (8, 0.5), (9, 0.3333)], ids=str)
def test_a_worker_gets_at_most_one_gpu_and_never_parts_of_two(workers: int, gpus: float) -> None:
    """Five workers at 0.8 of four GPUs would not fit: only one fits on each GPU."""
    assert worker_share([Machine(64, 4)], workers, on_gpus=True).gpus == gpus


def test_the_cores_of_a_machine_without_gpus_count_only_for_workers_on_cpus() -> None:
    machines = [Machine(96, 0), Machine(32, 4), Machine(32, 4)]
    assert worker_share(machines, 8, on_gpus=True) == Share(8.0, 1.0)
    assert worker_share(machines, 4, on_gpus=False) == Share(32.0, 0.0)


@pytest.mark.parametrize(
    ("cores", "workers", "share"),
    [([2], 2, 1.0), ([2], 4, 0.5), ([3, 3], 3, 1.5), ([3, 3], 4, 1.5), ([0, 1, 1], 2, 1.0), ([7], 3, 2.3333)],
    ids=str,
)
def test_a_worker_on_cpus_gets_cores_of_one_machine(cores: list[int], workers: int, share: float) -> None:
    """Three workers at 2.0 cores would not fit on two machines of three cores."""
    assert worker_share([Machine(c, 0) for c in cores], workers, on_gpus=False).cpus == share


def test_workers_on_gpus_are_refused_by_a_cluster_without_them() -> None:
    with pytest.raises(RequestError, match="the cluster has none"):
        worker_share([Machine(8, 0)], 2, on_gpus=True)
