"""The datasets of a call of kedge.train as a federation that fits the module."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from kedge.config.experiment import Experiment
from kedge.config.forward_check import preserve_generators
from kedge.core.errors import DataError, RequestError
from kedge.core.model import Batch
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation, federation_from_datasets
from kedge.data.local_tests import check_local_tests, split_tests
from kedge.nn.from_module import from_module
from kedge.nn.naming import FORWARD_ERRORS, error_text


def user_federation(
    clients: Sequence[Dataset],
    test: Dataset | None,
    local_tests: Sequence[Dataset] | None,
    module: nn.Module,
    experiment: Experiment,
) -> Federation:
    """The federation of the clients' datasets; its number of classes is the module's number of outputs."""
    federation = federation_from_datasets(clients, test, local_tests)
    experiment.participation.count(len(clients))
    outputs = output_count(module, federation.prepare(federation.pool.x[:1]).cpu())
    highest = int(max([int(federation.pool.y.max()), *([int(test.y.max())] if test else [])]))
    if highest >= outputs:
        raise DataError(
            f"label {highest} is outside the module's {outputs} outputs: labels run from 0 to {outputs - 1}."
        )
    return with_local_tests(replace(federation, classes=outputs), local_tests is not None, experiment)


def with_local_tests(federation: Federation, given: bool, experiment: Experiment) -> Federation:
    """The federation with the share `evaluation.local_test` of each client's samples as its local test.

    `given`: the caller passed local tests, so that a share is an error.
    """
    share, division = experiment.evaluation.local_test, experiment.evaluation.local
    check_local_tests(division, share)
    if division != "split":
        raise RequestError(
            f"evaluation.local = {division!r}: kedge.train has no common dataset to divide. Use 'split', "
            "or pass each client's own test data as local_tests."
        )
    if not share:
        return federation
    if given:
        raise RequestError(
            f"evaluation.local_test = {share} and local_tests: give one of them. local_tests are "
            "separate data; evaluation.local_test takes a share of each client's samples."
        )
    train, tests = split_tests(federation.clients, share, experiment.seed)
    return replace(federation, clients=tuple(train), local_tests=tuple(tests))


def output_count(module: nn.Module, x: torch.Tensor) -> int:
    """The number of logits that the module returns for a sample `x`."""
    model = from_module(module, units="layer")  # every module has units of this kind
    params, buffers = model.init(0)
    x = x.to(next(iter(params.values())).dtype)
    batch = Batch(
        x, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=x.dtype), torch.zeros(2, dtype=torch.int64)
    )
    try:
        with torch.no_grad(), preserve_generators():
            logits = model.apply(params, buffers, batch, False)[0].logits
    except FORWARD_ERRORS as error:
        raise RequestError(
            f"the module cannot take samples of shape {tuple(x.shape[1:])}: {error_text(error)}"
        ) from error
    if logits.dim() != 2:
        raise RequestError(f"the module returns shape {tuple(logits.shape)}: need logits [batch, classes].")
    return logits.shape[1]
