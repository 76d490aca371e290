"""Accuracy and loss of a model, sample by sample, on the common test set and on clients' local tests.

An engine may have a faster way to call one function again and again (`repeated`), and to run several models
at once (`at_once`); both are the plain way here.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves, stack
from kedge.data.federation import Federation

PASS = 1000  # samples of a pass
Repeated = Callable[[Any, Callable[..., Any]], Callable[..., Any]]  # name, function -> the function


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
) -> Scores:
    """Evaluate pass by pass."""
    correct, loss = [], []
    for start in range(0, len(y), PASS):
        one = answers(
            model, predict, params, buffers, prepare(x[start : start + PASS]), y[start : start + PASS]
        )
        correct.append(one.correct)
        loss.append(one.loss)
    return Scores(torch.cat(correct), torch.cat(loss))


def answers(
    model: Model,
    predict: Callable[[Output], Tensor],
    params: Leaves,
    buffers: Leaves,
    images: Tensor,
    labels: Tensor,
) -> Scores:
    """One pass."""
    key = torch.zeros(2, dtype=torch.int64, device=labels.device)
    weight = torch.ones(len(labels), dtype=images.dtype, device=images.device)
    logits = predict(model.apply(params, buffers, Batch(images, labels, weight, key), False)[0])
    return Scores(logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="none"))


def plainly(name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is."""
    return function


def on_test(
    model: Model,
    predict: Callable[[Output], Tensor],
    params: Leaves,
    buffers: Leaves,
    data: Federation,
    repeated: Repeated = plainly,
) -> dict[str, float]:
    """Accuracy and loss on the common test set; nothing where there is none."""
    if data.test is None:
        return {}
    look = partial(scores, model, predict, x=data.test.x, y=data.test.y, prepare=data.prepare)
    result = repeated(("test", predict), look)(params, buffers)
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
    at_once: int = 1,
) -> dict[int, Local]:
    """Every client's own model (client, parameters, statistics) on its own test, so many in one pass."""
    found: dict[int, Local] = {}
    rest = iter(models)
    while some := list(islice(rest, at_once)):
        if len(some) == 1:
            client, params, buffers = some[0]
            own = of_samples(model, predict, params, buffers, data.local_tests[client], data)
            found[client] = summed(*own)
        else:
            found |= dict(of_stack(model, predict, some, data))
    return found


@torch.no_grad()
def of_stack(
    model: Model,
    predict: Callable[[Output], Tensor],
    models: list[tuple[int, Leaves, Leaves]],
    data: Federation,
) -> Iterator[tuple[int, Local]]:
    """Several clients' models side by side, each on its own test; shorter tests are padded."""
    device = data.pool.y.device
    params, buffers = stack([own[1] for own in models]), stack([own[2] for own in models])
    tests = [data.local_tests[client] for client, _, _ in models]
    longest = max(len(own) for own in tests)
    index = torch.from_numpy(np.stack([np.resize(own, longest) for own in tests])).to(device)
    look = vmap(partial(answers, model, predict))
    step = max(1, PASS // len(models))
    parts = []
    for start in range(0, longest, step):
        some = index[:, start : start + step]
        parts.append(look(params, buffers, data.prepare(data.pool.x[some]), data.pool.y[some]))
    correct, loss = (torch.cat(v, 1).double().cpu() for v in zip(*parts, strict=True))
    for number, (client, _, _) in enumerate(models):
        count = len(tests[number])
        yield client, summed(correct[number, :count], loss[number, :count])


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
