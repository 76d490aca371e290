"""--address together with --resume: a resumed run may train on another cluster."""

from collections.abc import Sequence
from dataclasses import replace

from kedge.core.errors import RequestError
from kedge.running.open_engine import RAY
from kedge.running.requests import RunRequest


def at_address(requests: Sequence[RunRequest], address: str) -> list[RunRequest]:
    """Resumed runs with another address of their cluster; raise if a run needs no cluster.

    The address is not part of a run's identity. An empty `address` changes nothing.
    """
    return [with_address(request, address) for request in requests] if address else list(requests)


def with_address(request: RunRequest, address: str) -> RunRequest:
    """A run with another address of its cluster."""
    engine = request.experiment.engine
    recorded = request.engine_settings or {}
    if RAY not in (engine.name, recorded.get("name")):
        raise RequestError(
            f"--address {address}: the run in {request.folder} does not train on a cluster; its engine is "
            f"{recorded.get('name', engine.name)!r}. Leave --address out."
        )
    experiment = replace(request.experiment, engine=replace(engine, address=address))
    return request._replace(experiment=experiment)
