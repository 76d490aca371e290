"""Workers: the worker processes of a run, the shards that each of them trains, and their replacement.

A worker that is lost is replaced by a new one; if the cluster has no room for that, by the remaining
workers. Either rebuilds the lost shards from the journal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kedge.core.algorithm import Stage
from kedge.engines.choice.choose import Choice
from kedge.engines.ray.cluster import Cluster
from kedge.engines.ray.journal import Journal
from kedge.engines.ray.shards import Shards
from kedge.engines.ray.worker import Worker, WorkerSettings

START_SECONDS = 60.0  # for a new worker, before the cluster counts as full
LAST_START_SECONDS = 300.0  # the same, if no worker remains
CLIENTS_AT_ONCE = 16  # tuned models of a message
MEMORIES_AT_ONCE = 4  # memories of a message


Say = Callable[[str], None]


class WorkerArguments(NamedTuple):
    """The arguments of `setup`; model and data are references to objects in the store."""

    model: Any
    data: Any
    settings: WorkerSettings


class StageStart(NamedTuple):
    """The arguments of `begin`; `params` is a reference to an object in the store."""

    stage: Stage
    params: Any
    kept: frozenset[str]


@dataclass(eq=False)
class Process:
    """A worker process: its handle, and the shards that it trains."""

    handle: Any
    shards: list[int] = field(default_factory=list)


class WorkersLostError(RuntimeError):
    """All workers are lost, and the cluster has no room for a new one."""


class Workers:
    """Calls methods of all workers, and replaces workers that are lost."""

    def __init__(self, cluster: Cluster, arguments: WorkerArguments, shards: Shards, say: Say) -> None:
        self.cluster, self.ray, self.arguments = cluster, cluster.ray, arguments
        self.share, self.shards, self.say = arguments.settings.share, shards, say
        self.journal = Journal()
        self.choice: Choice | None = None
        self.stage_start: StageStart | None = None
        self.queued: tuple[Process, Any] | None = None  # a worker that has not started, and its setup
        self.processes = [Process(self.start_process(), [shard]) for shard in range(shards.count)]
        for process in self.processes:
            self.call(process, "setup", *arguments)

    def start_process(self) -> Any:
        """Request a worker from the cluster; return its handle."""
        return self.cluster.start(Worker, self.share)

    def build(self, choice: Choice) -> None:
        """Build the engine of every worker."""
        self.choice = choice
        self.call_all("build", choice)

    def begin(self, start: StageStart) -> None:
        """Start a stage on every worker. The journal has the memories that clients keep in it."""
        self.stage_start = start
        self.call_all("begin", *start)

    def call_all(self, method: str, *arguments: Any) -> None:
        """Call a method of every worker.

        A worker that is lost is replaced by one in the state that `choice`, `stage_start` and the journal
        describe; so they are set before the call.
        """
        calls = [(process, getattr(process.handle, method).remote(*arguments)) for process in self.processes]
        for process, call in calls:
            try:
                self.result(call)
            except self.losses():
                self.replace(process)

    def call(self, process: Process, method: str, *arguments: Any) -> Any:
        """Call a method of a worker and wait for its result; raises an error of Ray if the worker is lost."""
        return self.result(getattr(process.handle, method).remote(*arguments))

    def result(self, call: Any, timeout: float | None = None) -> Any:
        """Wait for the result of a call; an error of the method is raised as it was raised in the worker."""
        try:
            return self.ray.get(call, timeout=timeout)
        except self.ray.exceptions.RayTaskError as error:
            error.cause.add_note(f"In a worker process:\n{error}")
            raise error.cause from None

    def losses(self) -> tuple[type[Exception], ...]:
        """The errors of Ray that mean that a worker is lost, or a result with the machine that held it."""
        errors = self.ray.exceptions
        return errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError

    def gather(self, method: str, by_shard: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call `method` once for each shard, with its arguments; return the results by shard.

        The calls run side by side. The calls of a rebuilt shard are repeated, also if they have returned,
        because a shard is rebuilt in its state before the calls.
        """
        results: dict[int, Any] = {}
        while waiting := [shard for shard in by_shard if shard not in results]:
            processes = {shard: self.worker_of(shard) for shard in waiting}
            calls = {s: getattr(processes[s].handle, method).remote(*by_shard[s]) for s in waiting}
            lost = []
            for shard, call in calls.items():
                try:
                    results[shard] = self.result(call)
                except self.losses():
                    lost.append(processes[shard])
            rebuilt = {shard for process in dict.fromkeys(lost) for shard in self.replace(process)}
            results = {shard: result for shard, result in results.items() if shard not in rebuilt}
        return {shard: results[shard] for shard in by_shard}

    def worker_of(self, shard: int) -> Process:
        """The worker that trains a shard."""
        return next(process for process in self.processes if shard in process.shards)

    def replace(self, lost: Process) -> set[int]:
        """Rebuild the shards of a lost worker on a new worker, or on the remaining workers; return them.

        If a worker is lost while it rebuilds a shard, all its shards are rebuilt, too.
        """
        if lost not in self.processes:
            return set()
        self.ray.kill(lost.handle)  # it may still run, on a machine that cannot be reached
        self.processes.remove(lost)
        new = self.start_replacement(START_SECONDS if self.processes else LAST_START_SECONDS)
        if new is None and not self.processes:
            raise WorkersLostError(
                "all workers are lost, and the cluster has no room for a new one. The run can be resumed."
            )
        where = "on a new worker" if new else f"on the {len(self.processes)} remaining"
        self.say(f"a worker was lost: rebuilding its {len(lost.shards)} shard(s) {where}")
        targets = [new] if new else list(self.processes)
        return self.move([(s, targets[number % len(targets)]) for number, s in enumerate(lost.shards)])

    def move(self, moves: Sequence[tuple[int, Process]]) -> set[int]:
        """Rebuild each shard on its new worker; return all shards that were rebuilt."""
        rebuilt = set()
        for shard, target in moves:
            target.shards.append(shard)
        for shard, target in moves:
            rebuilt.add(shard)
            try:
                if target in self.processes:
                    self.rebuild(target, shard)
            except self.losses():
                rebuilt |= self.replace(target)
        return rebuilt

    def start_replacement(self, seconds: float) -> Process | None:
        """A new worker in the present stage, or None if the cluster has no room for one within `seconds`.

        A worker that has not started stays in the queue of the cluster; the next call waits for it again.
        """
        if self.queued is None:
            process = Process(self.start_process())
            self.queued = process, process.handle.setup.remote(*self.arguments)
        process, setup = self.queued
        try:
            self.result(setup, seconds)
            self.queued = None
            if self.choice:
                self.call(process, "build", self.choice)
            if self.stage_start:
                self.call(process, "begin", *self.stage_start)
        except self.ray.exceptions.GetTimeoutError:
            return None
        except self.losses():
            self.queued = None
            return None
        self.processes.append(process)
        return process

    def grow(self) -> None:
        """Start a missing worker, if the cluster has room again; it gets a shard of a worker with several."""
        if len(self.processes) == self.shards.count:
            return
        new = self.start_replacement(0)
        if new is None:
            return
        source = max(self.processes, key=lambda process: len(process.shards))
        shard = source.shards.pop()
        self.say("a new worker was started: rebuilding a shard on it")
        self.move([(shard, new)])
        try:
            self.call(source, "replace", self.members(shard), {})
        except self.losses():
            self.replace(source)

    def members(self, shard: int) -> list[int]:
        """The clients whose memories are in a shard."""
        return [client for client in range(len(self.shards.work)) if self.shards.owner(client) == shard]

    def rebuild(self, target: Process, shard: int) -> None:
        """Load the memories of a shard from the journal, and repeat its rounds."""
        members = self.members(shard)
        for first in range(0, len(members), MEMORIES_AT_ONCE):
            clients = members[first : first + MEMORIES_AT_ONCE]
            self.call(target, "replace", clients, self.journal.arrays(clients))
        for order, trained in self.journal.rounds_of(shard):
            self.call(target, "train", order, trained)

    def close(self) -> None:
        """Leave the workers to the next run, and remove the journal's files."""
        for process in self.processes:
            process.handle.reset.remote()
            self.cluster.put_back(self.share, process.handle)
        if self.queued:
            self.ray.kill(self.queued[0].handle)
        self.processes, self.queued = [], None
        self.journal.close()
