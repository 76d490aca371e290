"""Features of a round's models: the clusters that local models and the next global model retain.

An engine returns only averages, so a second engine with copies of the clients' memories trains the local
models once more. The models are, in this order: the sent global model, the local models, the next global
model, the plain average (the mean of the local models, before server rules). The greedy clusters do not
depend on the plain average. The values are

    features.models            the number of models, without the plain average
    features.clusters          the number of greedy clusters
    features.components        the number of connected components, another definition of clusters
    features.frequency         the numbers of clusters that occur in one model, in two models, … in all
    features.retained.local    the sent model's clusters that a local model has, too; mean over local models
    features.retained.next     … that the next global model has, too
    features.retained.average  … that the plain average has, too
    features.share             the mean of Ω
    features.constant          the number of constant columns, which are no features
    features.cka.clients.unit0 the mean linear CKA of two local models
    features.cka.global.unit0  the mean linear CKA of a local and the sent model
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.config.diagnostics import evenly_spaced, feature_samples
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


class ModelFeatures(NamedTuple):
    """The features of a model, and the Gram matrices of its units' outputs."""

    features: Tensor  # [samples, d]
    grams: dict[int, Tensor]  # by unit

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite, so that the model can be compared."""
        return bool(self.features.isfinite().all() and all(g.isfinite().all() for g in self.grams.values()))


@dataclass(frozen=True, eq=False)
class ModelsBeforeRound:
    """The sent global model and the local models of a round, before the server's update."""

    sent: ModelFeatures
    local: list[ModelFeatures]  # without models that are not finite
    left_out: int  # number of local models that are not finite

    def values(self, task: Task, after: Server) -> dict[str, Any]:
        """The values for the history's line; `after` is the server after the round."""
        next_leaves = {**after.own, **after.shared}
        next_model = features_of(task, next_leaves, after.buffers, units=False)
        plain = next_model
        if after.average is not after.shared:
            plain = features_of(task, {**after.own, **after.average}, after.buffers, units=False)
        models = [self.sent, *self.local, next_model]
        if not all(model.finite for model in (self.sent, next_model, plain)):
            return {"features.left_out": len(models)}
        found = interaction([m.features for m in (*models, plain)], task.measure.clusters)
        return {
            **interaction_values(found, len(models)),
            **similarity_values(self.sent, self.local),
            **({"features.left_out": self.left_out} if self.left_out else {}),
        }


def models_before_round(
    task: Task, engine: Engine, stage: Stage, order: Order, clients: Sequence[int], server: Server
) -> ModelsBeforeRound:
    """The sent model and the local models of the round that starts next."""
    sent = features_of(task, {**server.own, **server.shared}, server.buffers)
    local = [features_of(task, *m) for m in local_models(task, engine, stage, order, clients, server)]
    finite = [model for model in local if model.finite]
    return ModelsBeforeRound(sent, finite, len(clients) - len(finite))


def local_models(
    task: Task, engine: Engine, stage: Stage, order: Order, clients: Sequence[int], server: Server
) -> Iterator[tuple[Leaves, Leaves]]:
    """Train each client on a second engine, and yield its parameters and statistics, unless it diverges."""
    corrections = stage.algorithm.corrections
    if not any(isinstance(c, Updates) for c in corrections):
        corrections = (*corrections, Updates(()))
        order = order._replace(broadcast={**order.broadcast, Updates.name: {}})
    second_engine = Sequential(task.model, task.federation)
    stage = replace(stage, algorithm=replace(stage.algorithm, corrections=corrections))
    second_engine.begin(stage, {**server.own, **server.shared}, frozenset(c.name for c in corrections))
    second_engine.load(engine.save())
    for client in clients:
        reply = second_engine.train(order, [client]).reply()
        if reply.size:
            delta = reply.mean["slots"][Updates.name]["delta"]
            yield second_engine.personal(client, add(order.shared, delta), reply.mean["buffers"])


def features_of(task: Task, params: Leaves, buffers: Leaves, units: bool = True) -> ModelFeatures:
    """The features of a model on the test samples; with Gram matrices if `units`."""
    measure, prepare = task.measure, task.federation.prepare
    x = feature_samples(task.federation, measure)
    subset = evenly_spaced(x, measure.similarity_samples) if units else x[:0]
    grams = unit_outputs(task.model, params, buffers, subset, prepare, gram) if len(subset) else {}
    return ModelFeatures(model_features(task.model, params, buffers, x, prepare), grams)


def interaction_values(found: Interaction, models: int) -> dict[str, Any]:
    """The values of the interaction of `models` models and, as the last model, the plain average."""
    first = found.first(models)
    omega = first.tensor()
    sent, following, plain = 0, models - 1, models
    local = [found.shared(sent, number) for number in range(1, following)]
    return {
        "features.models": models,
        "features.clusters": first.clusters,
        "features.components": first.components,
        "features.frequency": torch.bincount(first.frequency, minlength=models + 1)[1:].tolist(),
        "features.retained.local": mean_or_none(local),
        "features.retained.next": found.shared(sent, following),
        "features.retained.average": found.shared(sent, plain),
        "features.share": int(omega.sum()) / omega.numel() if first.clusters else None,
        "features.constant": int((first.labels == NO_CLUSTER).sum()),
    }


def similarity_values(sent: ModelFeatures, local: Sequence[ModelFeatures]) -> dict[str, Any]:
    """Linear CKA by unit: between local models, and between local models and the sent model."""
    values: dict[str, Any] = {}
    for unit, sent_gram in sent.grams.items():
        local_grams = [model.grams[unit] for model in local]
        values[f"features.cka.clients.unit{unit}"] = mean_cka(local_grams)
        values[f"features.cka.global.unit{unit}"] = mean_or_none(
            cka(sent_gram, local_gram) for local_gram in local_grams
        )
    return values
