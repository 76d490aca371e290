"""MOON and FedNTD evaluate the models that they compare with by the statistics that were sent."""

from typing import Any

import pytest
import torch
from tests.oracle.wrong.moon import MOON
from torch import Tensor, nn

import kedge.engines.sequential as sequential
import kedge.engines.stack.programs as programs
from kedge.algorithms import fedavg, fedntd, moon
from kedge.audit.problems import federation
from kedge.audit.references import sent_statistics as sent
from kedge.audit.training import ENGINES, train_all_clients
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import Carry, local_step
from kedge.core.errors import RequestError
from kedge.core.model import Statistics
from kedge.core.optimizers import SGD
from kedge.nn.from_module import from_module, seeded


def moving(
    algorithm: Any, model: Any, local: Any, leaves: Any, carry: Carry, batch: Any, fixed: Any, *way: Any
) -> Carry:
    """A wrong kernel, in which Step.at uses the current statistics."""
    now = {**fixed, "buffers": carry["buffers"]}
    return local_step(algorithm, model, local, leaves, carry, batch, now, *way)


@pytest.mark.parametrize("statistics", ["shared", "local"])
@pytest.mark.parametrize(
    ("algorithm", "term"),
    [(fedntd(0.7, 2.0), sent.fedntd_term), (moon(0.7, projection=0), sent.moon_term)],
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
    assert sent.agrees_with_plain_modules(algorithm, term, statistics).passed
    monkeypatch.setattr(engine, "local_step", moving)
    finding = sent.agrees_with_plain_modules(algorithm, term, statistics)
    assert not finding.passed, finding.detail


class Directions(nn.Module):
    """A layer whose rows are divided by their norms. With weights of zeros its output is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rows, self.head = nn.Linear(6, 5), nn.Parameter(torch.randn(4, 5)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows / self.rows.norm(dim=1, keepdim=True)
        out: Tensor = self.head(torch.tanh(self.first(x)) @ rows.T)
        return out


@pytest.mark.parametrize("engine", ENGINES)
def test_moon_begins_on_a_network_that_divides_by_norms_of_its_weights(engine: str) -> None:
    """The term of a client without a previous model is 0, not 0 · NaN: its first round is FedAvg."""
    model, data = from_module(seeded(lambda: Directions().double(), 0)), federation((5, 7))
    ends = [
        train_all_clients(
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
    with pytest.raises(
        RequestError, match=r"moon\(projection=-1\): need a whole number of at least 0; 0 keeps"
    ):
        moon(projection=-1)
