"""What a run measures beside its accuracies, as [measure] asks: drift, a probe of all clients, features.

Drift of the round's clients comes with their uploads (`measure/updates.py`), local drift out of memories. A
probe trains all clients once more from what the round was given, on the run's own engine, whose memories are
put back afterwards; it is taken before the round, from the state the round starts from. None of it is kept:
with and without, a run ends in the same bytes.
"""

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.correction import Cohort
from kedge.core.server import Reply, Server
from kedge.core.tree import tree_map
from kedge.engines.engine import Assignment, Engine, Order, Rounds
from kedge.measure.local_drift import drift_correction, local_drift
from kedge.measure.updates import KINDS, Updates
from kedge.running.progress import Progress
from kedge.running.recording.measuring import evaluates, number
from kedge.running.recording.round_features import Look, looked

Numbers = dict[str, float | None]


def watcher(algorithm: Algorithm) -> Updates | None:
    """The correction that looks at updates, if there is one."""
    return next((c for c in algorithm.corrections if isinstance(c, Updates)), None)


def drift(task: Task, engine: Engine, stage: Stage, progress: Progress, reply: Reply) -> Numbers:
    """What the corrections of the round just done measure; in an evaluation's round also local drift."""
    algorithm, data = stage.algorithm, task.federation
    asked = [c for c in algorithm.corrections if reply.size or not isinstance(c, Updates)]
    told: Numbers = {k: float(v) for c in asked for k, v in c.measures(progress.server.slots[c.name]).items()}
    own, source = watcher(algorithm), drift_correction(algorithm)
    if own and source and evaluates(task, progress.round):
        told |= local_drift(source, engine.save(), data.facts(), own.units)
    return {k: number(v) for k, v in told.items()}


@dataclass(frozen=True, eq=False)
class Probed:
    """The measurements before a round, and the seconds they took."""

    probe: Numbers | None  # None: not asked for; {}: of everybody, as the round itself is
    look: Look | None
    seconds: float

    def after_round(self, task: Task, line: Mapping[str, Any], server: Server) -> dict[str, Any]:
        """The numbers for the history's line."""
        told: dict[str, Any] = {}
        if self.probe is not None:
            told |= self.probe or as_probe(line)
        if self.look is not None:
            told |= self.look.finished(task, server)
        return told


def before_round(
    task: Task, engine: Engine, stage: Stage, assignment: Assignment, server: Server
) -> Rounds[Probed]:
    """Measure all clients, and the models of this round's clients, from the state the round starts from."""
    order, clients = assignment
    began = time.perf_counter()
    population, coming = len(task.federation.clients), order.round + 1
    found: Numbers | None = None
    if task.measure.probe_due(coming):
        full = len(clients) == population
        if full:
            found = {}
        else:
            found = yield from probe(stage.algorithm, engine, order, population, len(clients))
    look = looked(task, engine, stage, order, clients, server) if task.measure.features_due(coming) else None
    return Probed(found, look, time.perf_counter() - began)


def probe(algorithm: Algorithm, engine: Engine, order: Order, population: int, width: int) -> Rounds[Numbers]:
    """Drift over all clients, `width` of them at a time; the engine is left as it was."""
    own = watcher(algorithm)
    assert own is not None, "measure.probe_every goes with measure.drift"
    saved = tree_map(torch.clone, engine.save())
    clients = range(population)
    replies: list[Reply] = []
    try:
        for at in range(0, population, width):
            replies.append((yield Assignment(order, clients[at : at + width])))
    finally:
        engine.load(saved)
    there = [reply for reply in replies if reply.size]
    if not there:
        return {"probe.clients": 0}
    size = sum(reply.size for reply in there)
    parts = [tree_map(lambda v, r=r: v * (r.size / size), r.mean["slots"][own.name]) for r in there]
    mean = functools.reduce(lambda left, right: tree_map(torch.add, left, right), parts)
    _, state = own.server({}, mean, {}, Cohort(order.round, size, population, order.shared))
    measures = {k: number(float(v)) for k, v in own.measures(state).items()}
    return {"probe.clients": size, **renamed(measures)}


def as_probe(line: Mapping[str, Any]) -> Numbers:
    """The drift of a round in which everybody took part is what a probe would have found."""
    size = len(line["clients"]) - len(line["rejected"])
    return {"probe.clients": size, **renamed(line)}


def renamed(numbers: Mapping[str, Any]) -> Numbers:
    """The drift of updates under a probe's names."""
    kinds = tuple(f"drift.{kind}" for kind in KINDS)
    return {f"probe.{k.removeprefix('drift.')}": v for k, v in numbers.items() if k.startswith(kinds)}
