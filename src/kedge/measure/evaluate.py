"""Accuracy and loss of a model, sample by sample, on the common test set and on clients' local tests."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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


class Local(NamedTuple):
    """A model's answers on one client's own test."""

    samples: int
    correct: int
    loss: float  # summed


def on_local_tests(
    model: Model, predict: Callable[[Output], Tensor], params: Leaves, buffers: Leaves, data: Federation
) -> dict[int, Local]:
    """One model's answers on the local tests, by client; clients without a test are not there."""
    sizes = {client: len(own) for client, own in enumerate(data.local_tests) if len(own)}
    if not sizes:
        return {}
    result = of_samples(model, predict, params, buffers, np.concatenate(data.local_tests), data)
    correct, loss = (torch.split(v.double().cpu(), list(sizes.values())) for v in result)
    return {client: summed(a, b) for client, a, b in zip(sizes, correct, loss, strict=True)}


def of_clients(
    model: Model,
    predict: Callable[[Output], Tensor],
    models: Iterable[tuple[int, Leaves, Leaves]],
    data: Federation,
) -> dict[int, Local]:
    """Every client's own model (client, parameters, statistics) on its own test."""
    return {
        client: summed(*of_samples(model, predict, params, buffers, data.local_tests[client], data))
        for client, params, buffers in models
    }


def of_samples(
    model: Model,
    predict: Callable[[Output], Tensor],
    params: Leaves,
    buffers: Leaves,
    samples: NDArray[np.int64],
    data: Federation,
) -> Scores:
    """The scores of some samples of the pool."""
    index = torch.from_numpy(samples).to(data.pool.y.device)
    return scores(model, predict, params, buffers, data.pool.x[index], data.pool.y[index], data.prepare)


def summed(correct: Tensor, loss: Tensor) -> Local:
    """The sums of one value a sample."""
    return Local(len(correct), int(correct.sum()), float(loss.double().sum()))


def together(clients: Iterable[Local]) -> dict[str, float]:
    """Accuracy and loss over all samples of these clients; nothing for none."""
    every = list(clients)
    samples = sum(one.samples for one in every)
    if not samples:
        return {}
    return {
        "accuracy": sum(one.correct for one in every) / samples,
        "loss": sum(one.loss for one in every) / samples,
    }
