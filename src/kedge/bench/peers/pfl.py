"""Rounds of pfl-research: its PyTorch model, simulated backend and federated averaging, as in its benchmarks.

The users' tensors are on the device. Users take part in a fixed cycle and are weighted by their samples,
which pfl reads in a fixed order. Local evaluation is off, except in the first round, which pfl always
evaluates.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.bench.rounds import Round
from kedge.bench.workloads import LEARNING_RATE, Workload
from kedge.data.federation import Federation

DEVICE = "PFL_PYTORCH_DEVICE"  # pfl reads its device from this variable; by default a GPU, if any
NEVER = 10**9  # rounds between evaluations


class Classifier(nn.Module):
    """A network with the methods that pfl calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """No metrics."""
        return {}


@contextmanager
def pfl_research(work: Workload, data: Federation) -> Iterator[Round]:
    """Rounds of pfl, with an event loop and the device in its environment variable."""
    before = os.environ.get(DEVICE)
    os.environ[DEVICE] = data.pool.x.device.type
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield rounds(work, data)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if before is None:
            del os.environ[DEVICE]
        else:
            os.environ[DEVICE] = before


def rounds(work: Workload, data: Federation) -> Round:
    """Rounds of pfl: each continues `run` for one more iteration, which pfl allows."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    module = Classifier(work.module().to(data.pool.x.device))
    model = PyTorchModel(
        module,
        local_optimizer_create=partial(torch.optim.SGD, weight_decay=work.weight_decay),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    clients = [torch.from_numpy(indices).to(data.pool.x.device) for indices in data.clients]
    users = {user: (data.pool.x[indices], data.pool.y[indices]) for user, indices in enumerate(clients)}
    sampler = get_user_sampler("minimize_reuse", list(users))
    dataset = FederatedDataset.from_slices(users, sampler)
    backend = SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()])
    local = NNTrainHyperParams(
        local_batch_size=work.batch,
        local_num_epochs=1,
        local_learning_rate=LEARNING_RATE,
        local_max_grad_norm=work.clip,
    )
    algorithm, iterations = FederatedAveraging(), count(1)

    def round(number: int) -> int:
        params = NNAlgorithmParams(
            central_num_iterations=next(iterations),
            evaluation_frequency=NEVER,
            train_cohort_size=work.per_round,
            val_cohort_size=0,
        )
        algorithm.run(params, backend, model, local, send_metrics_to_platform=False)
        return work.per_round * work.samples

    return round
