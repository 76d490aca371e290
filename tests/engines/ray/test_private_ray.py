"""A private run on a cluster: the same noise, the same clip and the same ε as in one process."""

from typing import Any

import pytest
from tests.running.test_private_runs import POISSON, distance, result

from kedge.engines.ray.cluster import Cluster

pytestmark = pytest.mark.slow


def test_a_private_run_on_two_workers_is_that_of_one_process(cluster: Cluster) -> None:
    """With an adaptive clip, and rounds in which the clients take part by chance."""
    settings: dict[str, Any] = {**POISSON, "privacy__adaptive": True, "rounds": 5}
    alone = result(**settings)
    workers = {"engine__name": "ray", "engine__workers": 2, "engine__worker_engine": "sequential"}
    spread = result(**settings, **workers)
    assert distance(alone.model, spread.model) < 1e-12
    for mine, other in zip(alone.history, spread.history, strict=True):
        assert mine["clients"] == other["clients"]
        assert mine["privacy.epsilon"] == other["privacy.epsilon"]
        assert mine["privacy.clip"] == pytest.approx(other["privacy.clip"], rel=1e-12)
