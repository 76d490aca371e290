"""Accuracy and loss of a model, sample by sample, on the common test set and on clients' local tests."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves
from kedge.data.federation import Federation


class Scores(NamedTuple):
    """One value a sample."""

    correct: Tensor
    loss: Tensor

    def accuracy(self) -> float:
        """The share of correct answers."""
        return float(self.correct.double().mean())

    def mean_loss(self) -> float:
        """The mean cross-entropy."""
        return float(self.loss.double().mean())


@torch.no_grad()
def scores(
    model: Model,
    predict: Callable[[Output], Tensor],
    params: Leaves,
    buffers: Leaves,
    x: Tensor,
    y: Tensor,
    prepare: Callable[[Tensor], Tensor],
    chunk: int = 1000,
) -> Scores:
    """Evaluate in passes of `chunk` samples."""
    correct, loss = [], []
    for start in range(0, len(y), chunk):
        images, labels = prepare(x[start : start + chunk]), y[start : start + chunk]
        key = torch.zeros(2, dtype=torch.int64, device=labels.device)
        batch = Batch(images, labels, torch.ones(len(labels), dtype=images.dtype, device=images.device), key)
        logits = predict(model.apply(params, buffers, batch, False)[0])
        correct.append(logits.argmax(1) == labels)
        loss.append(F.cross_entropy(logits, labels, reduction="none"))
    return Scores(torch.cat(correct), torch.cat(loss))


def on_test(
    model: Model, predict: Callable[[Output], Tensor], params: Leaves, buffers: Leaves, data: Federation
) -> dict[str, float]:
    """Accuracy and loss on the common test set; nothing where there is none."""
    if data.test is None:
        return {}
    result = scores(model, predict, params, buffers, data.test.x, data.test.y, data.prepare)
    return {"global.accuracy": result.accuracy(), "global.loss": result.mean_loss()}


def on_local_tests(
    model: Model,
    predict: Callable[[Output], Tensor],
    models: Callable[[int], tuple[Leaves, Leaves]] | tuple[Leaves, Leaves],
    data: Federation,
) -> tuple[dict[str, float], list[float | None]]:
    """Accuracy and loss over all local tests, by samples, and every client's accuracy (None: no test).

    `models` is one model for everybody, or gives each client's own.
    """
    everything = np.concatenate(data.local_tests) if data.local_tests else np.empty(0, dtype=np.int64)
    if not len(everything):
        return {}, []
    if callable(models):
        parts = []
        for client, own in enumerate(data.local_tests):
            index = torch.from_numpy(own).to(data.pool.y.device)
            if len(own):
                parts.append(
                    scores(
                        model, predict, *models(client), data.pool.x[index], data.pool.y[index], data.prepare
                    )
                )
        result = Scores(torch.cat([p.correct for p in parts]), torch.cat([p.loss for p in parts]))
    else:
        index = torch.from_numpy(everything).to(data.pool.y.device)
        result = scores(model, predict, *models, data.pool.x[index], data.pool.y[index], data.prepare)
    sizes = [len(own) for own in data.local_tests]
    by_client = [
        float(part.double().mean()) if len(part) else None
        for part in torch.split(result.correct.cpu(), sizes)
    ]
    return {"local.accuracy": result.accuracy(), "local.loss": result.mean_loss()}, by_client
