"""--engine and --address together with --resume: runs may continue on a cluster, on another, or on none."""

from collections.abc import Sequence
from dataclasses import replace

from kedge.config.experiment import EngineChoice, Experiment
from kedge.config.schema import parameters, typed_value
from kedge.core.errors import RequestError
from kedge.running.open_engine import RAY
from kedge.running.requests import RunRequest


def on_engine(requests: Sequence[RunRequest], name: str, address: str) -> list[RunRequest]:
    """The resumed runs of a sweep or of a list with another engine or address; empty values change nothing.

    With the engine "ray" they train as tasks of a cluster. A run that has started keeps the engine that
    trains it.
    """
    if not name:
        return at_address(requests, address)
    engine = typed_value(parameters(EngineChoice)["name"][0], name, "--engine")
    return at_address([with_settings(request, name=engine) for request in requests], address)


def at_address(requests: Sequence[RunRequest], address: str) -> list[RunRequest]:
    """Resumed runs with another address of their cluster; raise if a run needs no cluster.

    The address is not part of a run's identity. An empty `address` changes nothing.
    """
    if not address:
        return list(requests)
    for request in requests:
        engine = request.experiment.engine
        recorded = request.engine_settings or {}
        if RAY not in (engine.name, recorded.get("name")):
            raise RequestError(
                f"--address {address}: the run in {request.folder} does not train on a cluster; its engine "
                f"is {recorded.get('name', engine.name)!r}. Leave --address out."
            )
    return [with_settings(request, address=address) for request in requests]


def with_settings(request: RunRequest, **settings: str) -> RunRequest:
    """A run with other settings of the table [engine]."""
    experiment: Experiment = request.experiment
    return request._replace(experiment=replace(experiment, engine=replace(experiment.engine, **settings)))  # type: ignore[arg-type]
