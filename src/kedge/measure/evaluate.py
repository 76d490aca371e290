"""Accuracy and loss of models, sample by sample, on the common test set and on clients' local tests.

First come looks: all the device has to do, one value a sample and none of them asked for, so that a look may
still be under way while other things are done. Then the numbers, from tensors that have come to the CPU.

An engine may have a faster way to call a function again and again (`repeated`); it knows it by a name, which
says all that its shapes depend on. What such a call gives is overwritten by the next one, hence copied.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation

PASS = 1000  # samples of a pass
GRAIN = 64  # on a GPU, lengths of padded tests are multiples of this: every shape is a graph of its own there
Repeated = Callable[[Any, Callable[..., Any]], Callable[..., Any]]  # name, function -> the function
Predict = Callable[[Output], Tensor]
Own = tuple[int, Leaves, Leaves]  # a client, its model's parameters and statistics


class Scores(NamedTuple):
    """One value a sample: [samples], or a row a model."""

    correct: Tensor
    loss: Tensor


class Local(NamedTuple):
    """A model's answers on one client's own test."""

    samples: int
    correct: int
    loss: float  # summed


class HeldOut:
    """A federation's tests; which samples a look takes is put on the device once."""

    def __init__(self, data: Federation) -> None:
        self.data = data
        self.sizes = {client: len(own) for client, own in enumerate(data.local_tests) if len(own)}
        self.grain = GRAIN if data.pool.y.is_cuda else 1
        self.placed: dict[tuple[int, ...] | None, Tensor] = {}

    def everyone(self) -> Tensor:
        """The samples of all local tests, one client's after another's."""
        return self.put(None, lambda: np.concatenate(self.data.local_tests))

    def padded(self, clients: tuple[int, ...]) -> Tensor:
        """[clients, longest]: the samples of their tests; shorter ones begin anew."""
        longest = -(-max(self.sizes[client] for client in clients) // self.grain) * self.grain
        own = self.data.local_tests
        return self.put(clients, lambda: np.stack([np.resize(own[client], longest) for client in clients]))

    def put(self, name: tuple[int, ...] | None, samples: Callable[[], NDArray[np.int64]]) -> Tensor:
        """These samples on the device."""
        if name not in self.placed:
            self.placed[name] = torch.from_numpy(samples()).to(self.data.pool.y.device)
        return self.placed[name]


def plainly(name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is."""
    return function


@torch.no_grad()
def scores(
    model: Model,
    predict: Predict,
    prepare: Callable[[Tensor], Tensor],
    source: Dataset,
    params: Leaves,
    buffers: Leaves,
    index: Tensor | None = None,
) -> Scores:
    """Evaluate pass by pass: these samples of the source, or all."""
    parts = []
    for start in range(0, len(source if index is None else index), PASS):
        span = slice(start, start + PASS)
        some = span if index is None else index[span]
        parts.append(answers(model, predict, params, buffers, prepare(source.x[some]), source.y[some]))
    return Scores(*(torch.cat(values) for values in zip(*parts, strict=True)))


def answers(
    model: Model, predict: Predict, params: Leaves, buffers: Leaves, images: Tensor, labels: Tensor
) -> Scores:
    """One pass."""
    key = torch.zeros(2, dtype=torch.int64, device=labels.device)
    weight = torch.ones(len(labels), dtype=images.dtype, device=images.device)
    logits = predict(model.apply(params, buffers, Batch(images, labels, weight, key), False)[0])
    return Scores(logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="none"))


def on_test(
    model: Model,
    predict: Predict,
    models: Sequence[Leaves],
    buffers: Leaves,
    tests: HeldOut,
    repeated: Repeated = plainly,
) -> list[Scores]:
    """Models on the common test set, all in one call; nothing where there is none."""
    data = tests.data
    if data.test is None:
        return []
    one = partial(scores, model, predict, data.prepare, data.test)

    def look(models: Sequence[Leaves], buffers: Leaves) -> list[Scores]:
        return [one(params, buffers) for params in models]

    return [copied(own) for own in repeated(("test", predict, len(models)), look)(models, buffers)]


def on_local_tests(
    model: Model,
    predict: Predict,
    models: Sequence[Leaves],
    buffers: Leaves,
    tests: HeldOut,
    repeated: Repeated = plainly,
) -> list[Scores]:
    """Models on all local tests together, all in one call; nothing where there are none."""
    if not tests.sizes:
        return []
    one = partial(scores, model, predict, tests.data.prepare, tests.data.pool)

    def look(models: Sequence[Leaves], buffers: Leaves, index: Tensor) -> list[Scores]:
        return [one(params, buffers, index) for params in models]

    found = repeated(("local", predict, len(models)), look)(models, buffers, tests.everyone())
    return [copied(own) for own in found]


def of_clients(
    model: Model, predict: Predict, models: Sequence[Own], tests: HeldOut, repeated: Repeated = plainly
) -> Scores:
    """Clients' own models side by side, a row each, on their own tests; shorter tests are padded."""
    data, index = tests.data, tests.padded(tuple(client for client, _, _ in models))
    name = "own", predict, *index.shape
    if len(models) == 1:
        _, params, buffers = models[0]
        alone = partial(scores, model, predict, data.prepare, data.pool)
        return copied(Scores(*(v[None] for v in repeated(name, alone)(params, buffers, index[0]))))
    look = partial(side_by_side, model, predict, data)
    params, buffers = stack([own[1] for own in models]), stack([own[2] for own in models])
    return copied(repeated(name, look)(params, buffers, index))


@torch.no_grad()
def side_by_side(
    model: Model, predict: Predict, data: Federation, params: Leaves, buffers: Leaves, index: Tensor
) -> Scores:
    """A stack of models, each on the samples of its row."""
    look = vmap(partial(answers, model, predict))
    count, longest = index.shape
    step = max(1, PASS // count)
    parts = []
    for start in range(0, longest, step):
        some = index[:, start : start + step]
        parts.append(look(params, buffers, data.prepare(data.pool.x[some]), data.pool.y[some]))
    return Scores(*(torch.cat(values, 1) for values in zip(*parts, strict=True)))


def copied(found: Scores) -> Scores:
    """The same in memory of its own."""
    return Scores(found.correct.clone(), found.loss.clone())


def groups(models: Iterable[Own], at_once: int) -> Iterator[list[Own]]:
    """So many models at once."""
    rest = iter(models)
    while some := list(islice(rest, at_once)):
        yield some


def overall(found: Scores) -> dict[str, float]:
    """Accuracy and mean cross-entropy on the common test set."""
    return {
        "global.accuracy": float(found.correct.double().mean()),
        "global.loss": float(found.loss.double().mean()),
    }


def split(found: Scores, sizes: Mapping[int, int]) -> dict[int, Local]:
    """One model's answers on the local tests, by client; clients without a test are not there."""
    correct, loss = (torch.split(v, list(sizes.values())) for v in found)
    return {client: summed(a, b) for client, a, b in zip(sizes, correct, loss, strict=True)}


def rows(found: Scores, clients: Sequence[int], sizes: Mapping[int, int]) -> dict[int, Local]:
    """What these clients' own models answer, without the padding."""
    return {client: summed(*(v[row, : sizes[client]] for v in found)) for row, client in enumerate(clients)}


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
