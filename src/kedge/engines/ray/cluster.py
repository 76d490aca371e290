"""The Ray cluster of a run: joined by its address, or started on this machine and shut down afterwards."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from kedge.core.errors import RequestError
from kedge.engines.ray.shares import Machine, Share

LOOPBACK = "127.0.0.1"
FREEING = {"free_objects_period_milliseconds": 50}  # by default the store keeps dead objects for a second
INSTALL = "Ray is not installed. Install it with: pip install 'kedge[ray]'"


class Cluster:
    """A connected cluster, and the idle worker processes of finished runs."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.idle: list[tuple[Share, Any]] = []  # share, handle

    @property
    def machines(self) -> list[Machine]:
        """The machines of the cluster that can be reached."""
        resources = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [Machine(found.get("CPU", 0.0), int(found.get("GPU", 0))) for found in resources]

    def start(self, worker: type, share: Share) -> Any:
        """The handle of an idle worker with this share of the cluster, or of a new one."""
        for number, (idle_share, handle) in enumerate(self.idle):
            if idle_share == share:
                del self.idle[number]
                return handle
        actor = self.ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=0)(worker)
        return actor.remote()

    def put_back(self, share: Share, handle: Any) -> None:
        """Keep a worker for the next run."""
        self.idle.append((share, handle))


CONNECTED: list[Cluster] = []  # the connected cluster, if any


def import_ray() -> Any:
    """The package `ray`; raises RequestError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns about its next version
    try:
        import ray
    except ImportError:
        raise RequestError(f"engine.name = 'ray': {INSTALL}") from None
    return ray


@contextmanager
def connected(address: str = "") -> Iterator[Cluster]:
    """Connect to the cluster at `address`, or start one on this machine. Disconnect at the end.

    A cluster that this process has started ends with it, also if the process is killed. It listens on the
    loopback interface only. Inside this context another call returns the same cluster.
    """
    if CONNECTED:
        yield CONNECTED[0]
        return
    ray = import_ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            host = address.partition(":")[0]
            # Ray replaces 127.0.0.1 by the machine's own address, but no other loopback address.
            place = {"_node_ip_address": host} if host.startswith("127.") and host != LOOPBACK else {}
            ray.init(address=address, **place, **quiet)
        else:
            ray.init(
                "local", include_dashboard=False, _node_ip_address=LOOPBACK, _system_config=FREEING, **quiet
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"--address {address}" if address else "a cluster on this machine"
        raise RequestError(
            f"cannot connect to Ray at {where}: {error}. Start a cluster with 'ray start --head', or leave "
            "the address out: kedge then starts one on this machine."
        ) from error
    CONNECTED.append(Cluster(ray))
    try:
        yield CONNECTED[0]
    finally:
        CONNECTED.clear()
        ray.shutdown()


def pickle_by_value(modules: Sequence[ModuleType]) -> None:
    """Send these modules to workers as code, because workers cannot import them."""
    import_ray()
    from ray import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)
