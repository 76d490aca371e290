"""Jobs: the runs of a command divided among the tasks of a cluster, and the engine that a task trains on."""

from collections.abc import Sequence
from dataclasses import replace

from kedge.config.experiment import EngineChoice
from kedge.engines.ray.shares import Machine, Share
from kedge.running.packs.grouping import MOST, even_pack_size, groups
from kedge.running.requests import RunRequest


def tasks_at_once(machines: Sequence[Machine], wanted: EngineChoice, on_gpus: bool, runs: int) -> int:
    """The number of tasks that train at the same time: one for each GPU or core, and for each run at most."""
    resources = sum(machine.gpus if on_gpus else int(machine.cpus) for machine in machines)
    return max(1, min(wanted.workers or resources, runs))


def jobs_of(requests: Sequence[RunRequest], tasks: int, pack: int, on_gpus: bool) -> list[list[RunRequest]]:
    """The runs of each job. Runs that can train in one pack share a job, if all tasks have work.

    `pack` is the user's limit on the runs of a pack; 0: no limit.
    """
    most = min(-(-len(requests) // tasks), pack or MOST["cuda" if on_gpus else "cpu"])
    jobs: list[list[RunRequest]] = []
    for group in groups(requests):
        packed = 1 if group[0].experiment.engine.worker_engine == "sequential" else most
        size = even_pack_size(len(group), packed)
        jobs += [group[first : first + size] for first in range(0, len(group), size)]
    return jobs


def on_worker(request: RunRequest, share: Share) -> RunRequest:
    """The run as a task trains it: by itself, on the engine of the workers, with its share of a machine."""
    engine = request.experiment.engine
    threads = engine.threads or max(1, int(share.cpus))
    own = replace(
        engine, name=engine.worker_engine, device="cuda" if share.gpus else "cpu", threads=threads,
        workers=0, worker_engine="auto", address="",
    )  # fmt: skip
    return request._replace(experiment=replace(request.experiment, engine=own))
