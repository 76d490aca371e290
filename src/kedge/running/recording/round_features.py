"""Features of a round's models: what local models keep of the global one, and the next global one of it.

The local models of a round are made once more by an engine of their own, which takes the clients' memories
over and is thrown away: an engine hands out averages, and the run's own is not touched. Models are taken in
the order: the global one that was sent, the local ones, the next global one; and after them the plain average
(before a server's correction), which greedy clusters of the others do not depend on.

    features.models      features.clusters      features.components: connected components, the other reading
    features.frequency        how many clusters occur in one model, in two, … in all
    features.retained.local   clusters of the sent model that a local one has too, mean over the local ones
    features.retained.next    … that the next global one has
    features.retained.average … that the plain average has
    features.share: the mean of Ω            features.constant: components that are no features
    features.cka.clients.unit0: the mean linear CKA of two local models; features.cka.global.unit0: with the
    one that was sent
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.config.diagnostics import samples, spread
from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.server import Server
from kedge.core.tree import Leaves, add
from kedge.engines.engine import Engine, Order
from kedge.engines.sequential import Sequential
from kedge.measure.activations import model_features, unit_outputs
from kedge.measure.features import NO_CLUSTER, Interaction, interaction
from kedge.measure.similarity import cka, gram, mean_cka, mean_or_none
from kedge.measure.updates import Updates


class Seen(NamedTuple):
    """What is kept of a model."""

    features: Tensor  # [samples, d]
    grams: dict[int, Tensor]  # by unit

    @property
    def finite(self) -> bool:
        """Whether it can be compared."""
        return bool(self.features.isfinite().all() and all(g.isfinite().all() for g in self.grams.values()))


@dataclass(frozen=True, eq=False)
class Look:
    """The models before a round ends: the one that was sent, and the local ones that are finite."""

    sent: Seen
    local: list[Seen]
    left_out: int  # local models that are not finite

    def finished(self, task: Task, after: Server) -> dict[str, Any]:
        """The numbers, now that the next global model is there."""
        whole = {**after.own, **after.shared}
        coming = seen(task, whole, after.buffers, units=False)
        plain = coming
        if after.average is not after.shared:
            plain = seen(task, {**after.own, **after.average}, after.buffers, units=False)
        models = [self.sent, *self.local, coming]
        if not all(model.finite for model in (self.sent, coming, plain)):
            return {"features.left_out": len(models)}
        found = interaction([m.features for m in (*models, plain)], task.measure.clusters)
        return {
            **features(found, len(models)),
            **similarities(self.sent, self.local),
            **({"features.left_out": self.left_out} if self.left_out else {}),
        }


def looked(
    task: Task, engine: Engine, stage: Stage, order: Order, clients: Sequence[int], server: Server
) -> Look:
    """The models of a round that is about to begin."""
    sent = seen(task, {**server.own, **server.shared}, server.buffers)
    local = [seen(task, *model) for model in trained(task, engine, stage, order, clients, server)]
    there = [one for one in local if one.finite]
    return Look(sent, there, len(clients) - len(there))


def trained(
    task: Task, engine: Engine, stage: Stage, order: Order, clients: Sequence[int], server: Server
) -> Iterator[tuple[Leaves, Leaves]]:
    """Parameters and statistics of each client's model as its round ends; without those that diverge."""
    own = stage.algorithm.corrections
    if not any(isinstance(c, Updates) for c in own):
        own = (*own, Updates(()))
        order = order._replace(broadcast={**order.broadcast, Updates.name: {}})
    beside = Sequential(task.model, task.federation)
    stage = replace(stage, algorithm=replace(stage.algorithm, corrections=own))
    beside.begin(stage, {**server.own, **server.shared}, frozenset(c.name for c in own))
    beside.load(engine.save())
    for client in clients:
        reply = beside.round(order, [client])
        if reply.size:
            delta = reply.mean["slots"][Updates.name]["delta"]
            yield beside.personal(client, add(order.shared, delta), reply.mean["buffers"])


def seen(task: Task, params: Leaves, buffers: Leaves, units: bool = True) -> Seen:
    """What a model makes of the test samples."""
    measure, prepare = task.measure, task.federation.prepare
    x = samples(task.federation, measure)
    some = spread(x, measure.similarity_samples) if units else x[:0]
    grams = unit_outputs(task.model, params, buffers, some, prepare, gram) if len(some) else {}
    return Seen(model_features(task.model, params, buffers, x, prepare), grams)


def features(found: Interaction, models: int) -> dict[str, Any]:
    """Of the interaction of `models` models and, last, the plain average."""
    first = found.first(models)
    omega = first.tensor()
    sent, coming, plain = 0, models - 1, models
    local = [found.shared(sent, one) for one in range(1, coming)]
    return {
        "features.models": models,
        "features.clusters": first.clusters,
        "features.components": first.components,
        "features.frequency": torch.bincount(first.frequency, minlength=models + 1)[1:].tolist(),
        "features.retained.local": mean_or_none(local),
        "features.retained.next": found.shared(sent, coming),
        "features.retained.average": found.shared(sent, plain),
        "features.share": int(omega.sum()) / omega.numel() if first.clusters else None,
        "features.constant": int((first.labels == NO_CLUSTER).sum()),
    }


def similarities(sent: Seen, local: Sequence[Seen]) -> dict[str, Any]:
    """Linear CKA by unit: of the local models with each other, and with the one that was sent."""
    told: dict[str, Any] = {}
    for unit, own in sent.grams.items():
        every = [one.grams[unit] for one in local]
        told[f"features.cka.clients.unit{unit}"] = mean_cka(every)
        told[f"features.cka.global.unit{unit}"] = mean_or_none(cka(own, other) for other in every)
    return told
