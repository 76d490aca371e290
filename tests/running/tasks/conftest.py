"""A Ray cluster on this machine, for all tests of a process."""

import os
from collections.abc import Iterator

import pytest

from kedge.engines.ray.cluster import Cluster, connected


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two CPU cores, whatever the machine has."""
    os.environ.setdefault("RAY_OVERRIDE_RESOURCES", '{"CPU": 2}')
    pytest.importorskip("ray")
    with connected() as found:
        yield found
