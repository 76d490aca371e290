"""Wrong variants of FedTR and FedPVR."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tests.oracle.wrong.drift_corrections import ControlByParticipants
from tests.oracle.wrong.variant import Checks, with_corrections
from torch import Tensor

from kedge.algorithms import fedavg, feddyn, fedpvr, fedtr, scaffold
from kedge.algorithms.fedtr import ReleasedDrift, TrackedFeatures
from kedge.audit.oracles import fedtr as oracle_fedtr
from kedge.audit.oracles import scaffold as oracle_scaffold
from kedge.audit.references import feature_objectives, gradients, limit_points, reductions
from kedge.core.algorithm import Algorithm, by_size, equal
from kedge.core.correction import Cohort, End, Step
from kedge.core.losses import weighted_mean
from kedge.core.tree import Leaves, Tree, add, sub, zeros


class DriftFirst(ReleasedDrift):
    """d moves with the w before the step."""

    def init_client(self, shared: Leaves) -> Tree:
        return {"d": zeros(shared), "away": zeros(shared)}

    def advance(self, step: Step) -> Tree:
        d, away = step.state["d"], step.state["away"]
        rate = 2 * self.rate * self.strength
        moved = {k: v - rate * (v + away[k]) for k, v in d.items()}
        return {"d": moved, "away": {k: v - step.anchor[k] for k, v in step.params.items()}}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"d": end.state["d"], "away": zeros(end.delta)}, {}


class Unscaled(ReleasedDrift):
    """d moves by η_g·2(d + w − wᵗ), without λ."""

    def advance(self, step: Step) -> Tree:
        d = step.state["d"]
        return {"d": {k: v - self.rate * 2 * (v + step.params[k] - step.anchor[k]) for k, v in d.items()}}


class EveryStep(ReleasedDrift):
    """The accumulate rule, applied after every step."""

    def advance(self, step: Step) -> Tree:
        return {"d": {k: v + step.params[k] - step.anchor[k] for k, v in step.state["d"].items()}}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return end.state, {}


class Unsent(ReleasedDrift):
    """The upload is w_i, without d_i."""

    def send(self, delta: Leaves, end: End) -> Leaves:
        return delta


class SentOld(ReleasedDrift):
    """The accumulate rule's upload with the d_i of the round's start."""

    def send(self, delta: Leaves, end: End) -> Leaves:
        return add(delta, sub(end.state["d"], delta))


class Halved(ReleasedDrift):
    """½ ‖d_i + w − wᵗ‖²."""

    def loss(self, step: Step) -> Tensor:
        return ReleasedDrift.loss(self, step) / 2


class Forgotten(ReleasedDrift):
    """d_i starts with 0 in every round."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"d": zeros(end.delta)}, {}

    def send(self, delta: Leaves, end: End) -> Leaves:
        return add(delta, delta)


class Summed(TrackedFeatures):
    """R as a sum over the batch."""

    def loss(self, step: Step) -> Tensor:
        return TrackedFeatures.loss(self, step) * step.batch.weight.sum()


class PerFeature(TrackedFeatures):
    """R as a mean over samples and features (FedPAC)."""

    def loss(self, step: Step) -> Tensor:
        return TrackedFeatures.loss(self, step) / step.out.features.shape[1]


class Unweighted(TrackedFeatures):
    """Centroids of all clients have the same weight."""

    weight = equal

    def finish(self, end: End) -> tuple[Tree, Tree]:
        assert end.class_means is not None
        there = (end.class_means.samples > 0).to(end.class_means.mean.dtype)
        return end.state, {"mean": there[:, None] * end.class_means.mean, "share": there}


class Vanishing(TrackedFeatures):
    """A class without samples among the participants loses its centroid."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        empty = {k: torch.zeros_like(v) for k, v in state.items()}
        return TrackedFeatures.server(self, update, mean, empty, cohort)


class FromTheStart(TrackedFeatures):
    """The first round uses centroids of 0."""

    def loss(self, step: Step) -> Tensor:
        away = (step.out.features - step.broadcast["mean"][step.batch.y]).square().sum(1)
        return self.strength * weighted_mean(away, step.batch)


DRIFT, TRACKED = fedtr(0.0, 1.0), fedtr(0.7, 0.0)
BY_SIZE, UNIFORM = fedtr(0.0, 0.05, "accumulate"), fedtr(0.0, 0.05, "accumulate", weights="uniform")
CLIPPED = replace(reductions.LOCAL, clip=0.1)
UNCLIPPED = replace(reductions.LOCAL, clip=None)
closed = gradients.local_gradient


def released(kind: type[ReleasedDrift], rule: Any = "gradient") -> Algorithm:
    return with_corrections(DRIFT, kind(1.0, rule, 0.1))


WRONG: Checks = {
    "fedtr drift first": partial(oracle_fedtr.drift, released(DriftFirst), oracle_fedtr.GRADIENT),
    "fedtr drift first, at rest": partial(limit_points.fedtr_gradient, released(DriftFirst)),
    "fedtr drift without λ": partial(
        oracle_fedtr.drift_descends, with_corrections(DRIFT, Unscaled(0.3, "gradient", 0.2))
    ),
    "fedtr every step": partial(
        oracle_fedtr.drift, released(EveryStep, "accumulate"), oracle_fedtr.ACCUMULATE
    ),
    "fedtr without d": partial(oracle_fedtr.drift, released(Unsent), oracle_fedtr.GRADIENT),
    "fedtr without d, alone": partial(oracle_fedtr.one_participant, released(Unsent), oracle_fedtr.GRADIENT),
    "fedtr without d, doubled": partial(oracle_fedtr.accumulate_doubles, released(Unsent, "accumulate")),
    "fedtr the old d": partial(
        oracle_fedtr.one_participant, released(SentOld, "accumulate"), oracle_fedtr.ACCUMULATE
    ),
    "fedtr without the 2": partial(oracle_fedtr.drift, released(Halved), oracle_fedtr.GRADIENT),
    "fedtr without the 2, gradient": partial(closed, released(Halved), feature_objectives.fedtr, 3),
    "fedtr forgets": partial(oracle_fedtr.drift, released(Forgotten, "accumulate"), oracle_fedtr.ACCUMULATE),
    "fedtr forgets, at rest": partial(limit_points.fedtr_accumulate, released(Forgotten, "accumulate")),
    "fedtr other rule": partial(oracle_fedtr.drift, DRIFT, oracle_fedtr.ACCUMULATE),
    "fedtr another rate does not stall": partial(oracle_fedtr.half_rate_stalls, fedtr(0.0, drift_rate=0.4)),
    "fedtr gradient rule does not double": partial(oracle_fedtr.accumulate_doubles, DRIFT),
    "fedtr uniform": partial(oracle_fedtr.drift, fedtr(0.0, weights="uniform"), oracle_fedtr.GRADIENT),
    "fedtr R as a sum": partial(closed, with_corrections(TRACKED, Summed(0.7)), feature_objectives.fedtr, 3),
    "fedtr R over features": partial(
        closed, with_corrections(TRACKED, PerFeature(0.7)), feature_objectives.fedtr, 3
    ),
    "fedtr centroids unweighted": partial(oracle_fedtr.centroids, with_corrections(TRACKED, Unweighted(0.7))),
    "fedtr centroids vanish": partial(oracle_fedtr.centroids, with_corrections(TRACKED, Vanishing(0.7))),
    "fedtr R in the first round": partial(
        reductions.methods_agree, with_corrections(TRACKED, FromTheStart(0.7)), fedavg(), 1
    ),
    "fedtr another strength": partial(oracle_fedtr.features_and_drift, fedtr(0.9)),
    "fedtr is feddyn only unclipped": partial(reductions.methods_agree, UNIFORM, feddyn(0.1), local=CLIPPED),
    "fedtr is feddyn only uniform": partial(reductions.methods_agree, BY_SIZE, feddyn(0.1), local=UNCLIPPED),
    "fedtr is feddyn only for 2λ": partial(reductions.methods_agree, UNIFORM, feddyn(0.05), local=UNCLIPPED),
    "fedpvr over |S|": partial(
        oracle_scaffold.parts_match,
        with_corrections(fedpvr(), ControlByParticipants(last=1)),
        fedavg("uniform"),
        scaffold(),
    ),
    "fedpvr everywhere": partial(oracle_scaffold.fedpvr, scaffold()),
    "fedpvr by size": partial(oracle_scaffold.fedpvr, replace(fedpvr(), weight=by_size)),
    "fedpvr reaches nothing": partial(limit_points.fedpvr, fedavg("uniform")),
    "scaffold is not fedpvr at rest": partial(limit_points.fedpvr, scaffold()),
    "the head trains": partial(limit_points.fedbabu, fedavg()),
}


HARMLESS: Checks = {
    "a sum is a mean over one sample": partial(
        oracle_fedtr.features_and_drift,
        with_corrections(fedtr(), Summed(1.0), ReleasedDrift(1.0, "gradient", 0.1)),
    ),
    "over |S| is right when everybody takes part": partial(
        oracle_scaffold.fedpvr, with_corrections(fedpvr(), ControlByParticipants(last=1))
    ),
}
