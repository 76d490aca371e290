"""The Ray task that trains a job: it runs in a worker process, on an engine and in a folder of its own."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from kedge.engines.cuda.memory_limit import limit_gpu_memory
from kedge.engines.ray.cluster import import_ray
from kedge.engines.ray.shares import Share
from kedge.running.folders.resumed_code import use_code
from kedge.running.folders.sources import CodeChoice
from kedge.running.one_process import train_here
from kedge.running.progress import Interrupted
from kedge.running.requests import Controls, RunRequest
from kedge.running.tasks.events import Ended, JobEnd, Message, Started, end_event, line_of
from kedge.running.tasks.outbox import Outbox
from kedge.running.tasks.shared_folder import SharedFolder


class Job(NamedTuple):
    """Runs that train in one task, by their numbers in the command."""

    number: int
    requests: dict[int, RunRequest]


class TaskSettings(NamedTuple):
    """The settings that all tasks of a command share."""

    pack: int  # the user's limit on the runs of a pack; 0: no limit
    share: Share
    shared: SharedFolder
    code: tuple[Path, CodeChoice] | None  # the folder and the version of the user's own code, if resumed


def train_job(desk: Any, job: Job, settings: TaskSettings) -> JobEnd:
    """Train the runs of a job, and return how they ended."""
    settings.shared.enter()
    if settings.share.gpus:
        limit_gpu_memory(settings.share.gpus)
    numbers = {request.folder: run for run, request in job.requests.items()}
    ends: list[Ended] = []
    with chosen_code(settings.code), reporting(desk, job) as outbox:
        controls = Controls(
            False,
            lambda message: outbox.add(Message(message)),
            outbox.must_stop,
            lambda folder, values: outbox.add(line_of(numbers[folder], values)),
        )
        try:
            for outcome in train_here(list(job.requests.values()), settings.pack, controls):
                ends.append(end_event(numbers[outcome.request.folder], outcome))
                outbox.add(ends[-1])
        except Interrupted:
            pass
    return JobEnd(ends)


def chosen_code(code: tuple[Path, CodeChoice] | None) -> Any:
    """A context in which configurations use the version of the user's code that the driver uses."""
    return use_code(*code) if code else nullcontext()


@contextmanager
def reporting(desk: Any, job: Job) -> Iterator[Outbox]:
    """An outbox that has reported the start of this job."""
    outbox = Outbox(import_ray(), desk)
    outbox.add(Started(job.number))
    with outbox:
        yield outbox
