"""Evaluation of several models side by side is that of each alone."""

import numpy as np
import pytest
import torch

from kedge.core.algorithm import logits
from kedge.core.model import from_module, seeded
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.measure.evaluate import of_clients
from kedge.models import MODELS


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("at_once", [2, 3, 20])
def test_models_side_by_side_answer_as_each_alone(at_once: int, norm: str) -> None:
    source = synthetic(200, 4, (1, 8, 8))
    sizes = np.cumsum([5, 40, 12, 60, 9])[:-1]
    count = 5 + 40 + 12 + 60 + 9
    data = federate(source, np.split(np.arange(count), sizes), 0.4).to("cpu", torch.float64)
    model = from_module(seeded(lambda: MODELS["small-cnn"]((1, 8, 8), 4, norm=norm), 0))

    def models() -> list[tuple[int, dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
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

    alone = of_clients(model, logits, models(), data)
    together = of_clients(model, logits, models(), data, at_once)
    assert list(together) == list(alone) == [0, 1, 3, 4]
    for client, one in alone.items():
        assert (together[client].samples, together[client].correct) == (one.samples, one.correct)
        assert together[client].loss == pytest.approx(one.loss, rel=1e-12)
    assert len({one.loss for one in alone.values()}) == 4
