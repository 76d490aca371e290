"""Open the engine of a run: built in this process, or spread over the workers of a Ray cluster."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from kedge.config.experiment import EngineChoice
from kedge.config.imports import user_modules
from kedge.config.task import Task
from kedge.engines.choice.choose import Choice, EngineOptions, build
from kedge.engines.engine import Engine
from kedge.engines.ray.cluster import Cluster, connected, pickle_by_value
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.shares import worker_share
from kedge.engines.ray.worker import WorkerSettings
from kedge.running.engine_settings import choice_of, choose_engine

RAY = "ray"
Say = Callable[[str], None]


def cluster_of(
    wanted: EngineChoice, settings: Mapping[str, Any] | None = None
) -> AbstractContextManager[Any]:
    """A context in which this process is connected to the cluster of a run, if its engine needs one."""
    name = settings["name"] if settings else wanted.name
    return connected(wanted.address) if name == RAY else nullcontext()


def choose_settings(task: Task, wanted: EngineChoice, say: Say) -> dict[str, Any]:
    """Choose the engine of a new run, and return its settings. Call it in the context of `cluster_of`."""
    if wanted.name != RAY:
        return choose_engine([task], wanted, say)
    with connected() as cluster:
        settings = worker_settings(task, wanted, cluster)
        with ray_engine(task, settings, cluster, say) as engine:
            per_round = task.participation.count(len(task.federation.clients))
            options = EngineOptions(
                wanted.worker_engine, wanted.compile, wanted.chunk, wanted.streams, task.precision
            )
            per_worker = -(-per_round // settings["workers"])
            choice = engine.choose(task.stages[0], per_worker, task.rounds, options)
    return {**asdict(choice), **settings, "worker_engine": choice.name}


def worker_settings(task: Task, wanted: EngineChoice, cluster: Cluster) -> dict[str, Any]:
    """The number of workers and the resources of each; by default one for each GPU, or for each CPU core."""
    machines, on_gpus = cluster.machines, trains_on_gpus(wanted, cluster)
    resources = sum(machine.gpus if on_gpus else int(machine.cpus) for machine in machines)
    per_round = task.participation.count(len(task.federation.clients))
    workers = wanted.workers or max(1, min(resources, per_round))
    share = worker_share(machines, workers, on_gpus)
    return {
        "name": RAY,
        "workers": workers,
        "cpus": share.cpus,
        "gpus": share.gpus,
        "device": "cuda" if on_gpus else "cpu",
        "precision": task.precision,
        "threads": wanted.threads or max(1, int(share.cpus)),
        "packed": 1,
    }


def trains_on_gpus(wanted: EngineChoice, cluster: Cluster) -> bool:
    """Whether the workers of a new run train on GPUs."""
    return wanted.device == "cuda" or (
        wanted.device == "auto" and any(machine.gpus for machine in cluster.machines)
    )


@contextmanager
def open_engine(task: Task, settings: Mapping[str, Any], say: Say) -> Iterator[Engine]:
    """The engine that `settings` describe. Call it in the context of `cluster_of`."""
    choice = choice_of(settings)
    if choice.name != RAY:
        yield build(choice, task.model, task.federation, task.participants)
        return
    with connected() as cluster, ray_engine(task, settings, cluster, say) as engine:
        engine.build(Choice(**{**asdict(choice), "name": settings["worker_engine"]}))
        yield engine


@contextmanager
def ray_engine(task: Task, settings: Mapping[str, Any], cluster: Cluster, say: Say) -> Iterator[RayEngine]:
    """A RayEngine with workers of these settings, which are left to the next run at the end.

    Their share of the cluster is computed anew: a resumed run may train on another cluster.
    """
    pickle_by_value(user_modules())
    share = worker_share(cluster.machines, settings["workers"], settings["device"] == "cuda")
    common = settings["device"], settings["precision"], settings["threads"]
    workers = WorkerSettings(settings["workers"], share, *common)
    engine = RayEngine(cluster, task.model, task.federation, workers, say)
    try:
        yield engine
    finally:
        engine.close()
