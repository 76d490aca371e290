"""Measurements besides the accuracies, set in the table [measure]: drift, probes of all clients, features.

The drift of a round's clients is uploaded with their updates (`measure/updates.py`). Local drift is computed
from the clients' memories. A probe trains all clients once more on the run's own engine, before the round and
from the same state, and restores the memories afterwards. No measurement changes the run: its files have the
same bytes without them.
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
from kedge.running.recording.evaluation import evaluation_due, finite_or_none
from kedge.running.recording.round_features import ModelsBeforeRound, models_before_round

Values = dict[str, float | None]


def updates_correction(algorithm: Algorithm) -> Updates | None:
    """The correction of `algorithm` that measures the clients' updates, or None."""
    return next((c for c in algorithm.corrections if isinstance(c, Updates)), None)


def drift_values(task: Task, engine: Engine, stage: Stage, progress: Progress, reply: Reply) -> Values:
    """The values that the round's corrections measure, and the local drift if the round is evaluated."""
    algorithm, data, slots = stage.algorithm, task.federation, progress.server.slots
    measuring = [c for c in algorithm.corrections if reply.size or not isinstance(c, Updates)]
    values: Values = {k: float(v) for c in measuring for k, v in c.measures(slots[c.name]).items()}
    updates, source = updates_correction(algorithm), drift_correction(algorithm)
    if updates and source and evaluation_due(task, progress.round):
        values |= local_drift(source, engine.save(), data.facts(), updates.units)
    return {k: finite_or_none(v) for k, v in values.items()}


@dataclass(frozen=True, eq=False)
class BeforeRound:
    """The measurements before a round, and the seconds they took."""

    probe: Values | None  # None: no probe is due; {}: all clients take part, so the round itself is the probe
    models: ModelsBeforeRound | None  # None: features are not due
    seconds: float

    def after_round(self, task: Task, line: Mapping[str, Any], server: Server) -> dict[str, Any]:
        """The values for the history's line, after the server's update."""
        values: dict[str, Any] = {}
        if self.probe is not None:
            values |= self.probe or probe_from_line(line)
        if self.models is not None:
            values |= self.models.values(task, server)
        return values


def measure_before_round(
    task: Task, engine: Engine, stage: Stage, assignment: Assignment, server: Server
) -> Rounds[BeforeRound]:
    """Take the measurements that are due from the state before a round; yields the assignments of a probe."""
    order, clients = assignment
    began = time.perf_counter()
    population, number = len(task.federation.clients), order.round + 1
    probed: Values | None = None
    if task.measure.probe_due(number):
        if len(clients) == population:
            probed = {}
        else:
            probed = yield from probe(stage.algorithm, engine, order, population, len(clients))
    models = None
    if task.measure.features_due(number):
        models = models_before_round(task, engine, stage, order, clients, server)
    return BeforeRound(probed, models, time.perf_counter() - began)


def probe(algorithm: Algorithm, engine: Engine, order: Order, population: int, width: int) -> Rounds[Values]:
    """Measure drift over all clients, `width` clients at once, and restore the engine's memories."""
    updates = updates_correction(algorithm)
    assert updates is not None, "measure.probe_every goes with measure.drift"
    saved = tree_map(torch.clone, engine.save())
    clients = range(population)
    replies: list[Reply] = []
    try:
        for first in range(0, population, width):
            replies.append((yield Assignment(order, clients[first : first + width])))
    finally:
        engine.load(saved)
    admitted = [reply for reply in replies if reply.size]
    if not admitted:
        return {"probe.clients": 0}
    size = sum(reply.size for reply in admitted)
    parts = [tree_map(lambda v, r=r: v * (r.size / size), r.mean["slots"][updates.name]) for r in admitted]
    mean = functools.reduce(lambda left, right: tree_map(torch.add, left, right), parts)
    _, state = updates.server({}, mean, {}, Cohort(order.round, size, population, order.shared))
    measures = {k: finite_or_none(float(v)) for k, v in updates.measures(state).items()}
    return {"probe.clients": size, **with_probe_names(measures)}


def probe_from_line(line: Mapping[str, Any]) -> Values:
    """The values of a probe, from the history line of a round in which all clients took part."""
    size = len(line["clients"]) - len(line["rejected"])
    return {"probe.clients": size, **with_probe_names(line)}


def with_probe_names(values: Mapping[str, Any]) -> Values:
    """The drift of updates, with `probe.` for `drift.` in the names."""
    kinds = tuple(f"drift.{kind}" for kind in KINDS)
    return {f"probe.{k.removeprefix('drift.')}": v for k, v in values.items() if k.startswith(kinds)}
