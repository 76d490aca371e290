"""Accuracy and loss of models on the common test set and on clients' local tests.

Evaluation has two steps. The first runs the forward passes on the device and returns one value per sample
(`Scores`) without waiting for the device. The second turns scores, once they are on the CPU, into metrics.

An engine can speed up a function that is called often (`Accelerate`), for example by capturing it as a CUDA
graph. It caches the result by a name, which must determine the shapes of the function's inputs. The next call
overwrites the output tensors, so scores are copied.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

BATCH_LIMIT = {"cpu": 1000, "cuda": 2000}  # samples per forward pass
GPU_PADDING = 64  # on a GPU, padded lengths are multiples of this: every new shape needs a new CUDA graph
Accelerate = Callable[[Any, Callable[..., Any]], Callable[..., Any]]  # (name, function) -> faster function
Predict = Callable[[Output], Tensor]
Samples = tuple[Dataset, Tensor | None]  # a dataset and the indices to use; None: all of it
ClientModel = tuple[int, Leaves, Leaves]  # client, parameters, buffers


class Scores(NamedTuple):
    """Correctness and loss of each sample: [samples], or [models, samples]."""

    correct: Tensor
    loss: Tensor


class ClientScore(NamedTuple):
    """Totals of one model on one client's local test."""

    samples: int
    correct: int
    loss: float  # summed over the samples


class EvaluationSets:
    """The tests of a federation, with their sample indices cached on the device."""

    def __init__(self, data: Federation) -> None:
        self.data = data
        self.sizes = {client: len(test) for client, test in enumerate(data.local_tests) if len(test)}
        self.padding = GPU_PADDING if data.pool.y.is_cuda else 1
        self.indices: dict[tuple[int, ...] | None, Tensor] = {}

    def common(self) -> Samples | None:
        """The common test set, or None."""
        return (self.data.test, None) if self.data.test is not None else None

    def local(self) -> Samples | None:
        """The concatenated local tests in client order, or None."""
        if not self.sizes:
            return None
        return self.data.pool, self.on_device(None, lambda: np.concatenate(self.data.local_tests))

    def padded(self, clients: tuple[int, ...]) -> Tensor:
        """[clients, longest]: indices of the clients' local tests; shorter tests repeat their samples."""
        longest = -(-max(self.sizes[client] for client in clients) // self.padding) * self.padding
        tests = self.data.local_tests
        return self.on_device(clients, lambda: np.stack([np.resize(tests[c], longest) for c in clients]))

    def on_device(self, name: tuple[int, ...] | None, indices: Callable[[], NDArray[np.int64]]) -> Tensor:
        """Sample indices on the device, cached by `name`."""
        if name not in self.indices:
            self.indices[name] = torch.from_numpy(indices()).to(self.data.pool.y.device)
        return self.indices[name]


def unchanged(name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """An `Accelerate` that returns `function` itself."""
    return function


class Scorer(NamedTuple):
    """Compares a model's predictions with labels, in evaluation mode; `predict` selects the logits to use."""

    model: Model
    predict: Predict
    prepare: Callable[[Tensor], Tensor]  # the federation's samples -> the model's input

    @torch.no_grad()
    def forward(self, params: Leaves, buffers: Leaves, x: Tensor, labels: Tensor) -> Scores:
        """Scores of one forward pass."""
        images = self.prepare(x)
        key = torch.zeros(2, dtype=torch.int64, device=labels.device)
        weight = torch.ones(len(labels), dtype=images.dtype, device=images.device)
        batch = Batch(images, labels, weight, key)
        logits = self.predict(self.model.apply(params, buffers, batch, False)[0])
        return Scores(logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="none"))

    def stacked_forward(self, params: Leaves, buffers: Leaves, x: Tensor, labels: Tensor) -> Scores:
        """Scores of one forward pass under vmap with one row: on a GPU, kernels for stacks are faster."""
        params, buffers = (tree_map(lambda v: v[None], tree) for tree in (params, buffers))
        scores = vmap(self.forward)(params, buffers, x[None], labels[None])
        return Scores(*(v[0] for v in scores))

    def model_scores(
        self, params: Leaves, buffers: Leaves, samples: Samples, accelerate: Accelerate = unchanged
    ) -> Scores:
        """Scores of one model, computed batch by batch."""
        source, index = samples
        function = self.stacked_forward if source.y.is_cuda else self.forward
        parts = []
        for span in batch_slices(len(source if index is None else index), 1, source.y.device):
            rows = span if index is None else index[span]
            x, y = source.x[rows], source.y[rows]
            score = accelerate(("one", self.predict, len(y)), function)
            parts.append(copied(score(params, buffers, x, y)))
        return Scores(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def client_model_scores(
        self, models: Sequence[ClientModel], tests: EvaluationSets, accelerate: Accelerate = unchanged
    ) -> Scores:
        """Scores of clients' own models on their local tests: one stack, one padded row per client."""
        pool, index = tests.data.pool, tests.padded(tuple(client for client, _, _ in models))
        if len(models) == 1:
            _, params, buffers = models[0]
            scores = self.model_scores(params, buffers, (pool, index[0]), accelerate)
            return Scores(*(v[None] for v in scores))
        params, buffers = stack([model[1] for model in models]), stack([model[2] for model in models])
        forward = vmap(self.forward)
        parts = []
        for span in batch_slices(index.shape[1], len(models), index.device):
            x, y = pool.x[index[:, span]], pool.y[index[:, span]]
            score = accelerate(("own", self.predict, *y.shape), forward)
            parts.append(copied(score(params, buffers, x, y)))
        return Scores(*(torch.cat(values, 1) for values in zip(*parts, strict=True)))


def score_client_models(
    predict: Predict, model: Model, data: Federation, models: Sequence[ClientModel]
) -> dict[str, Tensor]:
    """The fields of the scores of clients' own models on their local tests in `data`."""
    scorer = Scorer(model, predict, data.prepare)
    return scorer.client_model_scores(models, EvaluationSets(data))._asdict()


def batch_slices(samples: int, models: int, device: torch.device) -> list[slice]:
    """Slices of equal length that cover `samples` samples, each small enough for `models` models."""
    batches = -(-samples * models // BATCH_LIMIT[device.type])
    width = max(1, -(-samples // batches)) if device.type == "cuda" else max(1, BATCH_LIMIT["cpu"] // models)
    return [slice(start, start + width) for start in range(0, samples, width)]


def copied(scores: Scores) -> Scores:
    """Scores whose tensors are copies."""
    return Scores(scores.correct.clone(), scores.loss.clone())


def groups(models: Iterable[ClientModel], size: int) -> Iterator[list[ClientModel]]:
    """The models in lists of at most `size`."""
    remaining = iter(models)
    while group := list(islice(remaining, size)):
        yield group


def common_metrics(scores: Scores) -> dict[str, float]:
    """Accuracy and mean cross-entropy on the common test set."""
    return {
        "global.accuracy": float(scores.correct.double().mean()),
        "global.loss": float(scores.loss.double().mean()),
    }


def split_by_client(scores: Scores, sizes: Mapping[int, int]) -> dict[int, ClientScore]:
    """Totals per client of one model's scores on the concatenated local tests of `sizes` samples."""
    correct, loss = (torch.split(v, list(sizes.values())) for v in scores)
    return {client: totals(a, b) for client, a, b in zip(sizes, correct, loss, strict=True)}


def rows_by_client(
    scores: Scores, clients: Sequence[int], sizes: Mapping[int, int]
) -> dict[int, ClientScore]:
    """Totals per client of `Scorer.client_model_scores`, without the padding."""
    return {client: totals(*(v[row, : sizes[client]] for v in scores)) for row, client in enumerate(clients)}


def totals(correct: Tensor, loss: Tensor) -> ClientScore:
    """Sums over one client's samples."""
    return ClientScore(len(correct), int(correct.sum()), float(loss.double().sum()))


def pooled_metrics(scores: Iterable[ClientScore]) -> dict[str, float]:
    """Accuracy and mean loss over all samples of the clients; empty without samples."""
    clients = list(scores)
    samples = sum(client.samples for client in clients)
    if not samples:
        return {}
    return {
        "accuracy": sum(client.correct for client in clients) / samples,
        "loss": sum(client.loss for client in clients) / samples,
    }
