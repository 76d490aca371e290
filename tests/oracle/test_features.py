"""Wrong variants of MOON are caught, and statistics that move under the models it compares with."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kedge.engines.programs as programs
import kedge.engines.sequential as sequential
from kedge.algorithms import fedavg, fedntd, moon
from kedge.algorithms.moon import Contrast
from kedge.audit.finding import Finding
from kedge.audit.oracles import moon as oracle_moon
from kedge.audit.problems import ENGINES, federation, trained
from kedge.audit.references import feature_objectives, gradients, reductions
from kedge.audit.references import sent_statistics as sent
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import Carry, local_step
from kedge.core.correction import End, Step
from kedge.core.errors import RequestError
from kedge.core.losses import weighted_mean
from kedge.core.model import Statistics
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves, Tree
from kedge.nn.from_module import from_module, seeded


def cosines(step: Step) -> tuple[Tensor, Tensor]:
    z, before = step.out.features, step.state["previous"]
    near, far = (F.cosine_similarity(z, step.at(one).features) for one in (step.anchor, before))
    return near, far


def term(own: Contrast, step: Step, values: Tensor) -> Tensor:
    known: Tensor = step.state["known"]
    return own.mu * known * weighted_mean(values, step.batch)


class Swapped(Contrast):
    """Away from the global model, near to the previous one."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((near - far) / self.temperature))


class OverPadding(Contrast):
    """The mean over all rows."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((far - near) / self.temperature).mean().expand(len(near)))


class Linear(Contrast):
    """torch's softplus as it comes: linear from 20 on."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((far - near) / self.temperature))


class Bare(Contrast):
    """Cosines without a floor under the norms."""

    def loss(self, step: Step) -> Tensor:
        z, before = step.out.features, step.state["previous"]
        near, far = (
            (z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1))
            for other in (step.at(step.anchor).features, step.at(before).features)
        )
        return term(self, step, F.softplus((far - near) / self.temperature, threshold=40.0))


class OneSided(Contrast):
    """The gradient through z reaches the previous model's part only."""

    def loss(self, step: Step) -> Tensor:
        near, far = cosines(step)
        return term(self, step, F.softplus((far - near.detach()) / self.temperature))


class RandomPrevious(Contrast):
    """A client never asked has a random model as its previous one (the authors' code)."""

    def init_client(self, shared: Leaves) -> Tree:
        chance = torch.Generator().manual_seed(0)
        other = {k: torch.randn(v.shape, generator=chance, dtype=v.dtype) for k, v in shared.items()}
        return {"previous": other, "known": next(iter(shared.values())).new_ones(())}


class SentAsPrevious(Contrast):
    """The model the client was sent, not the one it made of it."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"previous": end.anchor, "known": end.state["known"] * 0 + 1}, {}


class FirstForEver(Contrast):
    """The model of the client's first round stays its previous one."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        known = end.state["known"]
        kept = {k: torch.where(known > 0, v, end.params[k]) for k, v in end.state["previous"].items()}
        return {"previous": kept, "known": known * 0 + 1}, {}


MOON = moon(1.0, projection=0)
closed = gradients.local_gradient


def contrast(kind: type[Contrast], mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    return replace(MOON, corrections=(kind(mu, temperature),))


FAULTS: dict[str, Callable[[], Finding]] = {
    "moon swapped": partial(oracle_moon.moon, contrast(Swapped), 1.0),
    "moon swapped, gradient": partial(closed, contrast(Swapped), feature_objectives.contrasted, 3),
    "moon over padding": partial(oracle_moon.moon, contrast(OverPadding), 1.0),
    "moon another temperature": partial(oracle_moon.moon, moon(1.0, 0.4, 0), 1.0),
    "moon linear from 20 on": partial(oracle_moon.edges, contrast(Linear, 0.7, 0.08), 0.7, 0.08),
    "moon without a floor": partial(oracle_moon.edges, contrast(Bare, 0.7, 0.08), 0.7, 0.08),
    "moon one-sided gradient": partial(closed, contrast(OneSided), feature_objectives.contrasted, 3),
    "moon random previous": partial(reductions.same, contrast(RandomPrevious), fedavg(), 1),
    "moon the sent model as previous": partial(oracle_moon.previous, contrast(SentAsPrevious)),
    "moon keeps its first": partial(oracle_moon.previous, contrast(FirstForEver)),
    "moon is not fedavg": partial(reductions.same, MOON, fedavg()),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_variant_is_caught(name: str) -> None:
    finding = FAULTS[name]()
    assert not finding.passed, finding.detail


RIGHT: dict[str, Callable[[], Finding]] = {
    "a random previous model has the right term": partial(oracle_moon.moon, contrast(RandomPrevious), 1.0),
    "softplus is exact below 20": partial(oracle_moon.moon, contrast(Linear), 1.0),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_wrong_variant_passes_where_it_does_no_harm(name: str) -> None:
    finding = RIGHT[name]()
    assert finding.passed, finding.detail


def moving(
    algorithm: Any, model: Any, local: Any, leaves: Any, carry: Carry, batch: Any, fixed: Any, *way: Any
) -> Carry:
    """The kernel as it was: Step.at with the statistics of the moment."""
    now = {**fixed, "buffers": carry["buffers"]}
    return local_step(algorithm, model, local, leaves, carry, batch, now, *way)


@pytest.mark.parametrize("statistics", ["shared", "local"])
@pytest.mark.parametrize(
    ("algorithm", "term"),
    [(fedntd(0.7, 2.0), sent.distilled), (moon(0.7, projection=0), sent.contrasted)],
    ids=["fedntd", "moon"],
)
@pytest.mark.parametrize("engine", [sequential, programs], ids=["sequential", "stacked"])
def test_statistics_that_move_under_what_was_sent_are_caught(
    algorithm: Algorithm,
    term: sent.Term,
    statistics: Statistics,
    engine: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sent.sent_statistics(algorithm, term, statistics).passed
    monkeypatch.setattr(engine, "local_step", moving)
    finding = sent.sent_statistics(algorithm, term, statistics)
    assert not finding.passed, finding.detail


class Directions(nn.Module):
    """A layer whose rows are divided by their norms: weights of all zeros give no number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rows, self.head = nn.Linear(6, 5), nn.Parameter(torch.randn(4, 5)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows / self.rows.norm(dim=1, keepdim=True)
        out: Tensor = self.head(torch.tanh(self.first(x)) @ rows.T)
        return out


@pytest.mark.parametrize("engine", ENGINES)
def test_moon_begins_on_a_network_that_divides_by_norms_of_its_weights(engine: str) -> None:
    """A client without a previous model has a term of 0, not 0 · NaN: its first round is FedAvg."""
    model, data = from_module(seeded(lambda: Directions().double(), 0)), federation((5, 7))
    ends = [
        trained(
            one, LocalTraining(1, 4, SGD(0.1)), 1, data, model, ENGINES[engine](model, data)
        ).server.shared
        for one in (fedavg(), MOON)
    ]
    assert all(torch.equal(v, ends[1][k]) for k, v in ends[0].items())


def test_bad_hyper_parameters_are_refused_with_a_reason() -> None:
    with pytest.raises(RequestError, match=r"moon\(mu=-1.0\).*0 is FedAvg"):
        moon(-1.0)
    with pytest.raises(RequestError, match="need temperature > 0"):
        moon(temperature=0.0)
    with pytest.raises(RequestError, match=r"moon\(projection=-1\): need a width, or 0"):
        moon(projection=-1)
