"""Several models in one stack have the same scores as each model alone."""

import numpy as np
import pytest
import torch

from kedge.core.algorithm import logits
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.measure.evaluation import (
    ClientModel,
    ClientScore,
    EvaluationSets,
    Scorer,
    groups,
    rows_by_client,
)
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize(("at_once", "padding"), [(2, 1), (3, 1), (20, 1), (20, 64)])
def test_models_side_by_side_answer_as_each_alone(at_once: int, padding: int, norm: str) -> None:
    """For every padding of the tests."""
    source = synthetic(200, 4, (1, 8, 8))
    sizes = np.cumsum([5, 40, 12, 60, 9])[:-1]
    count = 5 + 40 + 12 + 60 + 9
    data = federate(source, np.split(np.arange(count), sizes), 0.4).to("cpu", torch.float64)
    model = from_module(seeded(lambda: MODELS["small-cnn"]((1, 8, 8), 4, norm=norm), 0))

    def models() -> list[ClientModel]:
        make = torch.Generator().manual_seed(1)
        params, buffers = model.init(0)
        return [
            (
                client,
                {k: torch.randn(v.shape, generator=make, dtype=torch.float64) for k, v in params.items()},
                {k: 1 + torch.rand(v.shape, generator=make, dtype=torch.float64) for k, v in buffers.items()},
            )
            for client in (0, 1, 3, 4)
        ]

    def scores_by_client(at_once: int, padding: int) -> dict[int, ClientScore]:
        tests, scorer = EvaluationSets(data), Scorer(model, logits, data.prepare)
        found: dict[int, ClientScore] = {}
        tests.padding = padding
        for group in groups(models(), at_once):
            clients = [client for client, _, _ in group]
            scores = scorer.client_model_scores(group, tests)
            found |= rows_by_client(scores, clients, tests.sizes)
            assert tests.padded(tuple(clients)).shape[1] % padding == 0
        return found

    alone, together = scores_by_client(1, 1), scores_by_client(at_once, padding)
    assert list(together) == list(alone) == [0, 1, 3, 4]
    for client, one in alone.items():
        assert (together[client].samples, together[client].correct) == (one.samples, one.correct)
        assert together[client].loss == pytest.approx(one.loss, rel=1e-12)
    assert len({one.loss for one in alone.values()}) == 4
