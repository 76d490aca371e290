"""SpreadRuns: the driver of runs that train as Ray tasks. It submits jobs and repeats jobs that are lost."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.engines.ray.cluster import Cluster
from kedge.engines.ray.shares import worker_share
from kedge.running.folders.checkpoint import newest_facts
from kedge.running.folders.sources import ACTIVE
from kedge.running.open_engine import trains_on_gpus
from kedge.running.progress import Interrupted
from kedge.running.requests import Controls, Outcome, RunRequest
from kedge.running.tasks.events import Desk, Ended, Event, JobEnd, Line, Message, Started
from kedge.running.tasks.jobs import jobs_of, on_worker, tasks_at_once
from kedge.running.tasks.shared_folder import shared_folder
from kedge.running.tasks.table import RunsTable
from kedge.running.tasks.task import Job, TaskSettings, train_job

COLORS = re.compile("\x1b\\[[0-9;]*m")  # in tracebacks of Ray
SECONDS = 0.3  # between two looks at the desk
LOSSES = 3  # of a job without a new checkpoint, before its runs fail


class SpreadRuns:
    """Trains runs as tasks of a cluster; the caller iterates `outcomes` once.

    Each task trains a job in a process of the cluster and writes the folders of its runs. If the process is
    lost, the job is submitted again, and its runs resume from their last checkpoints.
    """

    def __init__(
        self, cluster: Cluster, requests: Sequence[RunRequest], pack: int, controls: Controls
    ) -> None:
        """`pack` is the largest number of runs in a pack; 0: as many as fit into memory."""
        self.ray, self.controls, self.pack = cluster.ray, controls, pack
        self.requests = dict(enumerate(requests))
        wanted, machines = requests[0].experiment.engine, cluster.machines
        on_gpus = trains_on_gpus(wanted, cluster)
        self.tasks = tasks_at_once(machines, wanted, on_gpus, len(requests))
        self.share = worker_share(machines, self.tasks, on_gpus)
        self.on_gpus = on_gpus
        self.running: dict[Any, Job] = {}  # by the reference to the result
        self.started: set[int] = set()  # numbers of jobs
        self.ended: set[int] = set()  # numbers of runs
        self.losses: dict[int, int] = {}  # of each job, since its last new checkpoint
        self.saved: dict[int, int] = {}  # rounds in the checkpoints of each job when it was last lost
        self.table = RunsTable(self.requests, self.tasks, controls.shown)

    def outcomes(self) -> Iterator[Outcome]:
        """Train all runs, and yield outcomes as runs end; raise Interrupted if the runs were stopped."""
        ray, active = self.ray, ACTIVE.get()
        code = (active.folder.resolve(), active.choice) if active else None
        desk = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Desk).remote()
        with shared_folder([r.folder for r in self.requests.values()]) as shared, self.table:
            self.settings = TaskSettings(self.pack, self.share, shared, code)
            self.desk, self.settings_object = desk, ray.put(self.settings)
            for job in self.jobs():
                self.submit(job)
            try:
                while self.running:
                    yield from self.wait()
            finally:
                for task in self.running:
                    ray.cancel(task, force=True)
                ray.kill(desk)
        if len(self.ended) < len(self.requests):
            raise Interrupted

    def jobs(self) -> list[Job]:
        """The jobs, with runs as their tasks train them."""
        numbers = {request.folder: number for number, request in self.requests.items()}
        divided = jobs_of(list(self.requests.values()), self.tasks, self.pack, self.on_gpus)
        return [
            Job(number, {numbers[request.folder]: on_worker(request, self.share) for request in part})
            for number, part in enumerate(divided)
        ]

    def submit(self, job: Job) -> None:
        """Let the cluster train a job as soon as it has room."""
        options = {"num_cpus": self.share.cpus, "num_gpus": self.share.gpus, "max_retries": 0}
        task = self.ray.remote(**options)(train_job)
        self.running[task.remote(self.desk, job, self.settings_object)] = job

    def wait(self) -> Iterator[Outcome]:
        """Wait for events, for a short time; yield outcomes of runs that have ended."""
        done, _ = self.ray.wait(list(self.running), timeout=SECONDS)
        stopping = self.controls.stop()
        for event in self.ray.get(self.desk.take.remote(stopping)):
            yield from self.handle(event)
        for task in done:
            yield from self.finish(task, self.running.pop(task), stopping)
        if stopping:
            for task, job in self.running.items():
                if job.number not in self.started:
                    self.ray.cancel(task)

    def handle(self, event: Event) -> Iterator[Outcome]:
        """Show an event, or yield the outcome that it describes."""
        match event:
            case Started():
                self.started.add(event.job)
            case Line():
                self.table.show_line(event)
            case Message():
                self.table.say(event.text)
            case Ended():
                yield from self.end(event)

    def end(self, event: Ended) -> Iterator[Outcome]:
        """The outcome of a run, once."""
        if event.run not in self.ended:
            self.ended.add(event.run)
            self.table.show_end(event)
            yield event.outcome(self.requests[event.run])

    def finish(self, task: Any, job: Job, stopping: bool) -> Iterator[Outcome]:
        """The end of a task: outcomes of its runs; if its process was lost, it is submitted again."""
        errors = self.ray.exceptions
        try:
            result: JobEnd = self.ray.get(task)
        except errors.TaskCancelledError:
            return
        except errors.RayTaskError as error:
            yield from self.fail(job, error.cause, COLORS.sub("", str(error)))
        except errors.RayError as error:  # the process, its machine or the result is lost
            if not stopping:
                yield from self.repeat(job, error)
        else:
            for event in result.ends:
                yield from self.end(event)

    def repeat(self, job: Job, error: Exception) -> Iterator[Outcome]:
        """Submit the runs of a lost job that have not ended; fail them after several losses in one place."""
        left = {
            run: request_after_loss(request) for run, request in job.requests.items() if run not in self.ended
        }
        saved = sum(saved_rounds(request.folder) for request in left.values())
        further = saved > self.saved.get(job.number, -1)
        self.losses[job.number] = 1 if further else self.losses[job.number] + 1
        self.saved[job.number] = saved
        job = job._replace(requests=left)
        self.started.discard(job.number)
        if self.losses[job.number] >= LOSSES:
            yield from self.fail(job, lost_error(error), "")
        elif left:
            self.table.say(f"a worker was lost: {len(left)} run(s) continue from their last checkpoints")
            self.submit(job)

    def fail(self, job: Job, error: Exception, trace: str) -> Iterator[Outcome]:
        """The outcomes of the runs of a job that cannot train."""
        for run in job.requests:
            if run not in self.ended:
                self.ended.add(run)
                self.table.show_end(Ended(run, type(error).__name__))
                yield Outcome(self.requests[run], error, trace)


def request_after_loss(request: RunRequest) -> RunRequest:
    """The request of a run whose task was lost: it resumes if it has a folder."""
    return request._replace(start="resume") if (request.folder / "config.toml").is_file() else request


def saved_rounds(folder: Path) -> int:
    """The round of a run's newest checkpoint."""
    with suppress(OSError):
        facts = newest_facts(folder / "checkpoint")
        return int(facts["round"]) if facts else 0
    return 0


def lost_error(error: Exception) -> Exception:
    """The error of runs whose processes were lost again and again."""
    return RuntimeError(
        f"the process that trained this run ended suddenly, {LOSSES} times without a new checkpoint; the "
        "system may have had too little memory for it. Resume with fewer runs at once: --pack 1, or a "
        f"smaller engine.workers. The message of Ray: {str(error).splitlines()[0]}"
    )
