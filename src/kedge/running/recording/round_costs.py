"""The cost of each round of a run, in the order of the rounds; `kedge cost` predicts it without training.

The cost follows from the sampled clients, their numbers of samples, and the schedule. The lines of the
history contain it. Only training on the clients counts; padding and finished rows of a stack do not, nor
measurements (evaluation, fine-tuned copies, the `all` model).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kedge.config.metrics import tune_of
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, model_for, tuning_algorithm
from kedge.core.schedules import Clock, Mask
from kedge.core.selections import everything
from kedge.core.server import NOT_JOINED
from kedge.core.tree import Leaves, tree_to
from kedge.data.alignment import mask_runs
from kedge.data.batches import step_counts
from kedge.engines.leaves import trainable
from kedge.measure.cost.cost import Cost
from kedge.measure.cost.dry_run import DryRun
from kedge.measure.cost.traffic import Traffic, tensor_bytes
from kedge.measure.last_models import LastModels
from kedge.measure.updates import Updates

MEASURES = (LastModels, Updates)  # corrections that only measure

Phases = tuple[tuple[Mask, int], ...]  # the masks of a client's steps, each with its number of steps


class RoundPosition(NamedTuple):
    """The position of a round in its run; all numbers start at 0."""

    stage: int
    round: int
    stage_round: int


class ClientCost(NamedTuple):
    """The work of one client in one round."""

    samples: int
    updates: int
    macs: int
    trained: frozenset[str]  # leaves that train in some step


class StageCosts:
    """The work and the traffic of clients in the rounds of one stage."""

    def __init__(self, task: Task, stage: Stage, params: Leaves, buffers: Leaves) -> None:
        self.algorithm, self.local = without_measurements(stage.algorithm), stage.local
        self.model = model_for(self.algorithm, task.model)
        self.client = DryRun(self.algorithm, self.model, self.local, task.federation, params, buffers)
        down = {k: self.client.fixed[k] for k in ("anchor", "broadcast")}
        up = {k: self.client.upload[k] for k in ("delta", "slots")}
        # The server of a private run keeps its initial statistics.
        statistics = "frozen" if task.privacy.active else self.model.statistics
        self.traffic = Traffic(everything(self.model), down, up, buffers, statistics)
        self.shared = frozenset(self.client.fixed["anchor"])
        self.sizes, self.bytes = {k: v.numel() for k, v in params.items()}, tensor_bytes(params)
        self.cache: dict[tuple[int, Phases], ClientCost] = {}

    def client_cost(self, examples: int, position: RoundPosition) -> ClientCost:
        """The work of a client with `examples` samples."""
        batch, per_epoch = (int(v[0]) for v in step_counts(np.array([examples]), self.local))
        steps, units = self.local.epochs * per_epoch, len(self.model.units)
        clocks = (Clock(position.round, position.stage_round, step, steps) for step in range(steps))
        phases = tuple(mask_runs([self.algorithm.schedule(clock, units) for clock in clocks]))
        if (examples, phases) not in self.cache:
            self.cache[examples, phases] = self.cost_of_phases(examples, batch, per_epoch, phases)
        return self.cache[examples, phases]

    def cost_of_phases(self, examples: int, batch: int, per_epoch: int, phases: Phases) -> ClientCost:
        """The work of a client with `per_epoch` steps of `batch` samples in an epoch."""
        # `short` is the size of an epoch's last batch if it is smaller than the others, else 0.
        short = 0 if self.local.drop_last else examples % batch
        samples = updates = macs = done = 0
        for mask, steps in phases:
            leaves = trainable(self.model, mask)
            ends = (done + steps) // per_epoch - done // per_epoch if short else 0
            samples += (steps - ends) * batch + ends * short
            updates += steps * sum(self.sizes[k] for k in leaves)
            macs += (steps - ends) * self.client.step_macs(leaves, batch)
            macs += ends * self.client.step_macs(leaves, short) if ends else 0
            done += steps
        if self.algorithm.needs_class_means:
            macs += self.class_means_macs(examples)
        trained = frozenset(k for mask, _ in phases for k in trainable(self.model, mask))
        return ClientCost(samples, updates, macs + self.client.end, trained)

    def class_means_macs(self, examples: int) -> int:
        """Multiply-adds of the class means of `examples` samples, in batches of nearly equal size."""
        batches = -(-examples // self.local.batch)
        least, more = divmod(examples, batches)
        large, small = self.client.class_means_macs(least + 1), self.client.class_means_macs(least)
        return more * large + (batches - more) * small


class CostCounter:
    """Counts the costs of a run's rounds, one round after another."""

    def __init__(self, task: Task, history: Iterable[Mapping[str, Any]] = ()) -> None:
        """`history` has the lines of the finished rounds."""
        self.task = task
        params, buffers = task.model.init(task.seed)
        self.start = tree_to(params, task.federation.dtype), tree_to(buffers, task.federation.dtype)
        self.stages: dict[int, StageCosts] = {}
        self.last_change: dict[str, int] = {}  # leaf -> the last round in which the server's value changed
        self.last_round: dict[int, int] = {}  # client -> the last round in which it took part
        done = Counter[int]()
        for line in history:
            position = RoundPosition(line["stage"], line["round"] - 1, done[line["stage"]])
            done[position.stage] += 1
            clients = joined_clients(line)
            trained = all_trained(self.client_costs(position, clients))
            absent = len(line["clients"]) - len(clients)
            self.record_changes(position, clients, trained, len(line["rejected"]) - absent)

    def count_round(self, position: RoundPosition, clients: Sequence[int], rejected: int = 0) -> Cost:
        """Count the next round, in which `rejected` uploads were left out of the mean."""
        stage, works = self.stage_costs(position.stage), self.client_costs(position, clients)
        trained, traffic = all_trained(works), stage.traffic
        new = sum(client not in self.last_round for client in clients)
        down = new * traffic.bytes_down(trained, True) + (len(clients) - new) * traffic.bytes_down(trained)
        cost = Cost(
            parameters=sum(stage.sizes[k] for k in trained),
            samples=sum(work.samples for work in works),
            updates=sum(work.updates for work in works),
            macs=sum(work.macs for work in works),
            bytes_down=down + self.outdated_bytes(position, clients, trained),
            bytes_up=len(clients) * traffic.bytes_up(trained),
        )
        self.record_changes(position, clients, trained, rejected)
        return cost

    def stage_costs(self, stage: int) -> StageCosts:
        """The costs of the stage with this number."""
        if stage not in self.stages:
            self.stages[stage] = StageCosts(self.task, self.task.stages[stage], *self.start)
        return self.stages[stage]

    def client_costs(self, position: RoundPosition, clients: Sequence[int]) -> list[ClientCost]:
        """The work of each of these clients; clients with equal numbers of samples do the same work."""
        examples = [len(self.task.federation.clients[client]) for client in clients]
        cost_of_size = {n: self.stage_costs(position.stage).client_cost(n, position) for n in set(examples)}
        return [cost_of_size[n] for n in examples]

    def outdated_bytes(self, position: RoundPosition, clients: Iterable[int], trained: frozenset[str]) -> int:
        """Bytes of leaves that do not train in this round, but changed after a client's last round."""
        stage = self.stage_costs(position.stage)
        changes = {k: when for k, when in self.last_change.items() if k not in stage.shared & trained}
        first_round = position.round - position.stage_round
        if first_round:  # added heads start from the model at the end of the stage before
            before = self.task.stages[position.stage - 1].algorithm.heads
            changes |= {k: first_round - 1 for k in stage.algorithm.heads if k not in before}
        last = Counter(self.last_round.get(client, -1) for client in clients)
        return sum(
            count * stage.bytes[k]
            for k, when in changes.items()
            for round, count in last.items()
            if when >= round and k in stage.traffic.leaves
        )

    def record_changes(
        self, position: RoundPosition, clients: Sequence[int], trained: frozenset[str], rejected: int
    ) -> None:
        """Record the leaves that this round changed, and its clients."""
        if rejected < len(clients):
            self.last_change |= dict.fromkeys(
                self.stage_costs(position.stage).shared & trained, position.round
            )
        self.last_round |= dict.fromkeys(clients, position.round)


def joined_clients(line: Mapping[str, Any]) -> list[int]:
    """The clients of a history line, without those of a federation that had not joined yet.

    A line of a private federation names no clients.
    """
    absent = {row["client"] for row in line.get("rejected", ()) if row["reason"] == NOT_JOINED}
    return [client for client in line.get("clients", ()) if client not in absent]


def without_measurements(algorithm: Algorithm) -> Algorithm:
    """The method without the corrections that only measure."""
    corrections = tuple(c for c in algorithm.corrections if not isinstance(c, MEASURES))
    return replace(algorithm, corrections=corrections)


def all_trained(works: Iterable[ClientCost]) -> frozenset[str]:
    """The leaves that train on some client."""
    return frozenset[str]().union(*(work.trained for work in works))


def predicted_lines(task: Task, everyone: bool = False) -> Iterator[dict[str, Any]]:
    """The history's lines with round, method, clients and cost, computed before a run.

    Every stage has its maximum length. If `everyone`, the cost has also the papers' count: the number of
    parameters updated if all clients took part in every round.
    """
    counter, round, population = CostCounter(task), 0, len(task.federation.clients)
    for number, stage in enumerate(task.stages):
        for stage_round in range(stage.rounds):
            position = RoundPosition(number, round, stage_round)
            clients = task.participation.sample(population, task.seed, round)
            cost = counter.count_round(position, clients)._asdict()
            if everyone:
                works = counter.client_costs(position, range(population))
                cost["papers_count"] = sum(work.updates for work in works)
            round += 1
            line = {"round": round, "stage": number, "method": stage.algorithm.name, "clients": clients}
            yield {**line, "cost": cost}


def fine_tuning_cost(task: Task) -> dict[str, int] | None:
    """The cost of fine-tuning a copy of every client's model once; None if the run does not fine-tune."""
    stage = task.stages[-1]
    clients = [c for c, samples in enumerate(task.federation.local_tests) if len(samples)]
    tune = tune_of(task, stage.algorithm)
    if tune is None or not clients:
        return None
    local = replace(stage.local, epochs=tune.epochs)
    only_tuning = replace(task, stages=(Stage(tuning_algorithm(stage.algorithm, tune), 1, local),))
    works = CostCounter(only_tuning).client_costs(RoundPosition(0, task.rounds, 0), clients)
    sums = {"samples": sum(work.samples for work in works), "macs": sum(work.macs for work in works)}
    return {"clients": len(clients), "epochs": tune.epochs, **sums}
