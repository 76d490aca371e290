"""Wrong variants of MOON."""

from functools import partial

import torch
from tests.oracle.wrong.variant import Checks, with_corrections
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms import fedavg, moon
from kedge.algorithms.moon import Contrast
from kedge.audit.oracles import moon as oracle_moon
from kedge.audit.references import feature_objectives, gradients, reductions
from kedge.core.algorithm import Algorithm
from kedge.core.correction import End, Step
from kedge.core.losses import weighted_mean
from kedge.core.tree import Leaves, Tree


def cosines(step: Step) -> tuple[Tensor, Tensor]:
    z, before = step.out.features, step.state["previous"]
    near, far = (F.cosine_similarity(z, step.at(one).features) for one in (step.anchor, before))
    return near, far


def term(own: Contrast, step: Step, values: Tensor) -> Tensor:
    known: Tensor = step.state["known"]
    return own.mu * known * weighted_mean(values, step.batch)


class Swapped(Contrast):
    """Features move away from the global model's and towards the previous model's."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((near - far) / self.temperature))


class OverPadding(Contrast):
    """The mean over all rows of the batch, with padding."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((far - near) / self.temperature).mean().expand(len(near)))


class Linear(Contrast):
    """torch's softplus with its default threshold: linear above 20."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((far - near) / self.temperature))


class WithoutFloor(Contrast):
    """Cosines without a lower bound of the norms."""

    def loss(self, step: Step) -> Tensor:
        z, before = step.out.features, step.state["previous"]
        near, far = (
            (z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1))
            for other in (step.at(step.anchor).features, step.at(before).features)
        )
        return term(self, step, F.softplus((far - near) / self.temperature, threshold=40.0))


class OneSided(Contrast):
    """The gradient through z reaches only the part of the previous model."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((far - near.detach()) / self.temperature))


class RandomPrevious(Contrast):
    """A random model is the previous model of a client's first round (the authors' code)."""

    def init_client(self, shared: Leaves) -> Tree:
        generator = torch.Generator().manual_seed(0)
        other = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in shared.items()}
        return {"previous": other, "known": next(iter(shared.values())).new_ones(())}


class SentAsPrevious(Contrast):
    """The previous model is the model that was sent to the client, not the one it trained."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"previous": end.anchor, "known": end.state["known"] * 0 + 1}, {}


class FirstForEver(Contrast):
    """The previous model is always that of the client's first round."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        known = end.state["known"]
        kept = {k: torch.where(known > 0, v, end.params[k]) for k, v in end.state["previous"].items()}
        return {"previous": kept, "known": known * 0 + 1}, {}


MOON = moon(1.0, projection=0)
closed = gradients.local_gradient


def contrast(kind: type[Contrast], mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    return with_corrections(MOON, kind(mu, temperature))


WRONG: Checks = {
    "moon swapped": partial(oracle_moon.contrast, contrast(Swapped), 1.0),
    "moon swapped, gradient": partial(closed, contrast(Swapped), feature_objectives.moon, 3),
    "moon over padding": partial(oracle_moon.contrast, contrast(OverPadding), 1.0),
    "moon another temperature": partial(oracle_moon.contrast, moon(1.0, 0.4, 0), 1.0),
    "moon linear from 20 on": partial(oracle_moon.extreme_features, contrast(Linear, 0.7, 0.08), 0.7, 0.08),
    "moon without a floor": partial(
        oracle_moon.extreme_features, contrast(WithoutFloor, 0.7, 0.08), 0.7, 0.08
    ),
    "moon one-sided gradient": partial(closed, contrast(OneSided), feature_objectives.moon, 3),
    "moon random previous": partial(reductions.methods_agree, contrast(RandomPrevious), fedavg(), 1),
    "moon the sent model as previous": partial(oracle_moon.previous_model, contrast(SentAsPrevious)),
    "moon keeps its first": partial(oracle_moon.previous_model, contrast(FirstForEver)),
    "moon is not fedavg": partial(reductions.methods_agree, MOON, fedavg()),
}


HARMLESS: Checks = {
    "a random previous model has the right term": partial(
        oracle_moon.contrast, contrast(RandomPrevious), 1.0
    ),
    "softplus is exact below 20": partial(oracle_moon.contrast, contrast(Linear), 1.0),
}
