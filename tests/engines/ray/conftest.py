"""A Ray cluster on this machine, for all tests of a process."""

import json
import os
from collections.abc import Iterator

import pytest
import torch

from kedge.engines.ray.cluster import Cluster, connected


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two CPU cores and at most one GPU, whatever the machine has."""
    resources = {"CPU": 2, **({"GPU": 1} if torch.cuda.is_available() else {})}
    os.environ["RAY_OVERRIDE_RESOURCES"] = json.dumps(resources)
    pytest.importorskip("ray")
    with connected() as found:
        yield found
