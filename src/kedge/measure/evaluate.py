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
from kedge.core.tree import Leaves, stack, tree_map
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation

PASS = {"cpu": 1000, "cuda": 2000}  # samples of a pass, at most
GRAIN = 64  # on a GPU, lengths of padded tests are multiples of this: every shape is a graph of its own there
Repeated = Callable[[Any, Callable[..., Any]], Callable[..., Any]]  # name, function -> the function
Predict = Callable[[Output], Tensor]
Where = tuple[Dataset, Tensor | None]  # samples of a set; none named: all of it
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

    def common(self) -> Where | None:
        """The common test set, if there is one."""
        return (self.data.test, None) if self.data.test is not None else None

    def local(self) -> Where | None:
        """The samples of all local tests, one client's after another's, if there are such."""
        if not self.sizes:
            return None
        return self.data.pool, self.put(None, lambda: np.concatenate(self.data.local_tests))

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


def scores(
    model: Model,
    predict: Predict,
    data: Federation,
    source: Dataset,
    params: Leaves,
    buffers: Leaves,
    index: Tensor | None,
    repeated: Repeated,
) -> Scores:
    """One model, pass by pass: on these samples of the source, or on all."""
    look = partial(answers, model, predict, data.prepare)
    alone = partial(in_a_stack_of_one, look) if source.y.is_cuda else look
    parts = []
    for span in spans(len(source if index is None else index), 1, source.y.device):
        some = span if index is None else index[span]
        x, y = source.x[some], source.y[some]
        parts.append(copied(repeated(("one", predict, len(y)), alone)(params, buffers, x, y)))
    return Scores(*(torch.cat(values) for values in zip(*parts, strict=True)))


def spans(samples: int, models: int, device: torch.device) -> list[slice]:
    """Equal passes over so many samples of so many models."""
    passes = -(-samples * models // PASS[device.type])
    width = max(1, -(-samples // passes)) if device.type == "cuda" else max(1, PASS["cpu"] // models)
    return [slice(start, start + width) for start in range(0, samples, width)]


@torch.no_grad()
def answers(
    model: Model,
    predict: Predict,
    prepare: Callable[[Tensor], Tensor],
    params: Leaves,
    buffers: Leaves,
    x: Tensor,
    labels: Tensor,
) -> Scores:
    """One pass."""
    images = prepare(x)
    key = torch.zeros(2, dtype=torch.int64, device=labels.device)
    weight = torch.ones(len(labels), dtype=images.dtype, device=images.device)
    logits = predict(model.apply(params, buffers, Batch(images, labels, weight, key), False)[0])
    return Scores(logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="none"))


def in_a_stack_of_one(
    look: Callable[..., Scores], params: Leaves, buffers: Leaves, x: Tensor, labels: Tensor
) -> Scores:
    """A pass by the programs made for stacks, which are the faster ones on a GPU."""
    rows = [tree_map(lambda v: v[None], own) for own in (params, buffers)]
    return Scores(*(v[0] for v in vmap(look)(*rows, x[None], labels[None])))


def of_everybody(
    model: Model,
    predict: Predict,
    models: Sequence[Leaves],
    buffers: Leaves,
    data: Federation,
    where: Where | None,
    repeated: Repeated = plainly,
) -> list[Scores]:
    """Models that are one for all clients, each on these samples; nothing where there are none."""
    if where is None:
        return []
    source, index = where
    return [scores(model, predict, data, source, own, buffers, index, repeated) for own in models]


def of_clients(
    model: Model, predict: Predict, models: Sequence[Own], tests: HeldOut, repeated: Repeated = plainly
) -> Scores:
    """Clients' own models side by side, a row each, on their own tests; shorter tests are padded."""
    data, index = tests.data, tests.padded(tuple(client for client, _, _ in models))
    if len(models) == 1:
        _, params, buffers = models[0]
        alone = scores(model, predict, data, data.pool, params, buffers, index[0], repeated)
        return Scores(*(v[None] for v in alone))
    params, buffers = stack([own[1] for own in models]), stack([own[2] for own in models])
    look = vmap(partial(answers, model, predict, data.prepare))
    parts = []
    for span in spans(index.shape[1], len(models), index.device):
        x, y = data.pool.x[index[:, span]], data.pool.y[index[:, span]]
        parts.append(copied(repeated(("own", predict, *y.shape), look)(params, buffers, x, y)))
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
