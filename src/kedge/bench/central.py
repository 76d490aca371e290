"""The ceiling: one model trained on the samples of all clients together, compiled and, on a GPU, captured."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.algorithms import fedavg
from kedge.bench.loops import Round
from kedge.core.algorithm import Local
from kedge.core.client import Carry, local_step, started
from kedge.core.model import Batch, Model
from kedge.core.tree import cast
from kedge.data.federation import Federation
from kedge.engines.graphs import captured, in_place
from kedge.engines.tracing import traced


def central_step(
    model: Model,
    local: Local,
    data: Federation,
    carry: Carry,
    fixed: Any,
    index: Tensor,
    x: Tensor,
    y: Tensor,
) -> Carry:
    """One step of the kernel on one large batch, outside any stack."""
    weight = torch.ones(len(index), dtype=data.dtype, device=index.device)
    key = torch.zeros(2, dtype=torch.int64, device=index.device)
    batch = Batch(data.prepare(x[index]), y[index], weight, key)
    return local_step(fedavg(), model, local, tuple(carry["params"]), carry, batch, fixed)


def compiled_central(model: Model, local: Local, data: Federation, batch: int, steps: int) -> Round:
    """Rounds of so many steps of so large a batch."""
    device = data.pool.x.device
    params, buffers = (cast(v, data.dtype, device) for v in model.init(0))
    carry = in_place(started(local, params, buffers, {}))
    lr = torch.tensor(local.optimizer.rate(0), dtype=data.dtype, device=device)
    fixed = in_place({"anchor": params, "buffers": buffers, "cast": {}, "facts": {}, "lr": lr})
    index = torch.zeros(batch, dtype=torch.int64, device=device)
    with fastest_convolutions():
        arguments = carry, fixed, index, data.pool.x, data.pool.y
        function = partial(central_step, model, local, data)
        step = partial(traced(function, *arguments, repeatable=False), *arguments)
        graph = captured(step, torch.cuda.graph_pool_handle())[0] if device.type == "cuda" else None

    def round(number: int) -> int:
        order = torch.randint(len(data.pool), (steps, batch), device=device)
        for some in order:
            arguments[2].copy_(some)  # the graph moves the arguments' memory, so they are held here
            graph.replay() if graph else step()
        return steps * batch

    return round


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms and take the fastest."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = True, False
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
