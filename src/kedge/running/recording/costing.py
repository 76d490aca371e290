"""What every round of a run costs, in the order of the rounds; known before anything trains.

It follows from who takes part, how many samples each has, and what the schedule opens: a run's history has
it, `kedge cost` tells it beforehand. Costs are a client's alone (no padding, no dead rows), and training's
alone: what is done to measure (evaluation, fine-tuned copies, the `all` model) is left out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kedge.config.metrics import tune_of
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, fitted, tuning
from kedge.core.schedules import Clock, Mask
from kedge.core.selections import everything
from kedge.core.tree import Leaves, tree_to
from kedge.data.batches import mask_runs, step_counts
from kedge.engines.engine import trainable
from kedge.measure.cost.cost import Cost
from kedge.measure.cost.dry_run import DryRun
from kedge.measure.cost.traffic import Traffic, tensor_bytes
from kedge.measure.last_models import LastModels
from kedge.measure.updates import Updates

MEASURES = (LastModels, Updates)  # corrections that correct nothing

Phases = tuple[tuple[Mask, int], ...]  # what trains, for how many steps


class Place(NamedTuple):
    """A round of a run; all counted from 0."""

    stage: int
    round: int
    stage_round: int


class Work(NamedTuple):
    """What a client does in a round."""

    samples: int
    updates: int
    macs: int
    trained: frozenset[str]  # leaves that train in some step


class Prices:
    """What the clients of one stage do and send."""

    def __init__(self, task: Task, stage: Stage, params: Leaves, buffers: Leaves) -> None:
        self.algorithm, self.local = unmeasured(stage.algorithm), stage.local
        self.model = fitted(self.algorithm, task.model)
        self.client = DryRun(self.algorithm, self.model, self.local, task.federation, params, buffers)
        down = {k: self.client.fixed[k] for k in ("anchor", "broadcast")}
        up = {k: self.client.upload[k] for k in ("delta", "slots")}
        self.traffic = Traffic(everything(self.model), down, up, buffers, self.model.statistics)
        self.shared = frozenset(self.client.fixed["anchor"])
        self.sizes, self.bytes = {k: v.numel() for k, v in params.items()}, tensor_bytes(params)
        self.known: dict[tuple[int, Phases], Work] = {}

    def work(self, examples: int, at: Place) -> Work:
        """Of a client with so many samples."""
        batch, per_epoch = (int(v[0]) for v in step_counts(np.array([examples]), self.local))
        steps, units = self.local.epochs * per_epoch, len(self.model.units)
        clocks = (Clock(at.round, at.stage_round, step, steps) for step in range(steps))
        phases = tuple(mask_runs([self.algorithm.schedule(clock, units) for clock in clocks]))
        if (examples, phases) not in self.known:
            self.known[examples, phases] = self.worked(examples, batch, per_epoch, phases)
        return self.known[examples, phases]

    def worked(self, examples: int, batch: int, per_epoch: int, phases: Phases) -> Work:
        """The same, with batches of this size and so many of them an epoch."""
        short = 0 if self.local.drop_last else examples % batch  # the last batch of an epoch, if it is short
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
            looks = -(-examples // self.local.batch)
            least, more = divmod(examples, looks)
            macs += more * self.client.class_means_macs(least + 1) + (
                looks - more
            ) * self.client.class_means_macs(least)
        trained = frozenset(k for mask, _ in phases for k in trainable(self.model, mask))
        return Work(samples, updates, macs + self.client.end, trained)


class Ledger:
    """The costs of a run's rounds, asked for one after another."""

    def __init__(self, task: Task, history: Iterable[Mapping[str, Any]] = ()) -> None:
        """`history`: the rounds that are done."""
        self.task = task
        params, buffers = task.model.init(task.seed)
        self.start = tree_to(params, task.federation.dtype), tree_to(buffers, task.federation.dtype)
        self.stages: dict[int, Prices] = {}
        self.changed: dict[str, int] = {}  # leaf -> the last round in which the server's changed
        self.had: dict[int, int] = {}  # client -> the last round it took part in
        done = Counter[int]()
        for line in history:
            at = Place(line["stage"], line["round"] - 1, done[line["stage"]])
            done[at.stage] += 1
            trained = all_trained(self.works(at, line["clients"]))
            self.note(at, line["clients"], trained, len(line["rejected"]))

    def entry(self, at: Place, clients: Sequence[int], rejected: int = 0) -> Cost:
        """The cost of the next round, in which so many uploads were not admitted."""
        prices, works = self.prices(at.stage), self.works(at, clients)
        trained, traffic = all_trained(works), prices.traffic
        new = sum(client not in self.had for client in clients)
        news = new * traffic.bytes_down(trained, True) + (len(clients) - new) * traffic.bytes_down(trained)
        cost = Cost(
            parameters=sum(prices.sizes[k] for k in trained),
            samples=sum(work.samples for work in works),
            updates=sum(work.updates for work in works),
            macs=sum(work.macs for work in works),
            bytes_down=news + self.bytes_behind(at, clients, trained),
            bytes_up=len(clients) * traffic.bytes_up(trained),
        )
        self.note(at, clients, trained, rejected)
        return cost

    def prices(self, stage: int) -> Prices:
        """Of a stage, by its number."""
        if stage not in self.stages:
            self.stages[stage] = Prices(self.task, self.task.stages[stage], *self.start)
        return self.stages[stage]

    def works(self, at: Place, clients: Sequence[int]) -> list[Work]:
        """What each of these clients does; those with equally many samples do the same."""
        examples = [len(self.task.federation.clients[client]) for client in clients]
        each = {n: self.prices(at.stage).work(n, at) for n in set(examples)}
        return [each[n] for n in examples]

    def bytes_behind(self, at: Place, clients: Iterable[int], trained: frozenset[str]) -> int:
        """Of leaves that are not this round's news, but changed after a client last came."""
        prices = self.prices(at.stage)
        old = {k: when for k, when in self.changed.items() if k not in prices.shared & trained}
        began = at.round - at.stage_round
        if began:  # heads that come in start from the model of that moment
            before = self.task.stages[at.stage - 1].algorithm.heads
            old |= {k: began - 1 for k in prices.algorithm.heads if k not in before}
        last = Counter(self.had.get(client, -1) for client in clients)
        return sum(
            count * prices.bytes[k]
            for k, when in old.items()
            for round, count in last.items()
            if when >= round and k in prices.traffic.leaves
        )

    def note(self, at: Place, clients: Sequence[int], trained: frozenset[str], rejected: int) -> None:
        """Remember what this round changed, and who took part."""
        if rejected < len(clients):
            self.changed |= dict.fromkeys(self.prices(at.stage).shared & trained, at.round)
        self.had |= dict.fromkeys(clients, at.round)


def unmeasured(algorithm: Algorithm) -> Algorithm:
    """The method without what only measures."""
    own = tuple(c for c in algorithm.corrections if not isinstance(c, MEASURES))
    return replace(algorithm, corrections=own)


def all_trained(works: Iterable[Work]) -> frozenset[str]:
    """The leaves that train on some client."""
    return frozenset[str]().union(*(work.trained for work in works))


def planned(task: Task, everyone: bool = False) -> Iterator[dict[str, Any]]:
    """The history's lines as far as they are known before a run; stages are as long as they may be.

    `everyone`: also the papers' count, the parameters updated if all clients took part.
    """
    ledger, round, population = Ledger(task), 0, len(task.federation.clients)
    for number, stage in enumerate(task.stages):
        for stage_round in range(stage.rounds):
            at = Place(number, round, stage_round)
            clients = task.participation.sample(population, task.seed, round)
            cost = ledger.entry(at, clients)._asdict()
            if everyone:
                cost["papers_count"] = sum(work.updates for work in ledger.works(at, range(population)))
            round += 1
            line = {"round": round, "stage": number, "method": stage.algorithm.name, "clients": clients}
            yield {**line, "cost": cost}


def tuned(task: Task) -> dict[str, int] | None:
    """What it takes to fine-tune a copy of every client's model once; None where that is not done."""
    stage = task.stages[-1]
    clients = [c for c, own in enumerate(task.federation.local_tests) if len(own)]
    tune = tune_of(task, stage.algorithm)
    if tune is None or not clients:
        return None
    local = replace(stage.local, epochs=tune.epochs)
    alone = replace(task, stages=(Stage(tuning(stage.algorithm, tune), 1, local),))
    works = Ledger(alone).works(Place(0, task.rounds, 0), clients)
    sums = {"samples": sum(w.samples for w in works), "macs": sum(w.macs for w in works)}
    return {"clients": len(clients), "epochs": tune.epochs, **sums}
