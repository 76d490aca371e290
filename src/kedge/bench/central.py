"""The ceiling: one model trained on the samples of all clients together, compiled and, on a GPU, captured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.algorithms import fedavg
from kedge.bench.loops import Round
from kedge.core.algorithm import LocalTraining
from kedge.core.client import Carry, initial_carry, local_step
from kedge.core.model import Batch, Model
from kedge.core.tree import tree_to
from kedge.data.federation import Federation
from kedge.engines.cuda.graphs import captured, in_place
from kedge.engines.cuda.tracing import traced
from kedge.torch_private import compiler_options, tree_map_only


def central_step(
    model: Model,
    local: LocalTraining,
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


def compiled_central(model: Model, local: LocalTraining, data: Federation, batch: int, steps: int) -> Round:
    """Rounds of so many steps of so large a batch."""
    device = data.pool.x.device
    index = torch.zeros(batch, dtype=torch.int64, device=device)
    with fastest_convolutions():
        try:
            step = central_program(model, local, data, index, in_place)
        except AssertionError as error:
            # Where images are 1×1, torch's compiler may expect a kernel's gradient with channels last, as the
            # kernel is, and cuDNN gives it with channels first. Then kernels have them first, too.
            if "stride" not in str(error):
                raise
            with compiler_options(layout_optimization=False):
                step = central_program(model, local, data, index, copied)

    def round(number: int) -> int:
        order = torch.randint(len(data.pool), (steps, batch), device=device)
        for some in order:
            index.copy_(some)
            step()
        return steps * batch

    return round


def central_program(
    model: Model, local: LocalTraining, data: Federation, index: Tensor, placed: Callable[[Any], Any]
) -> Callable[[], object]:
    """One step on the samples in `index`, again and again, of a model that is put in its place."""
    device = data.pool.x.device
    params, buffers = (tree_to(v, data.dtype, device) for v in model.init(0))
    lr = torch.tensor(local.optimizer.rate(0), dtype=data.dtype, device=device)
    carry = placed(initial_carry(local, params, buffers, {}))
    round = torch.zeros((), dtype=torch.int64, device=device)
    sent = {"anchor": params, "broadcast": {}, "lr": lr, "round": round}
    fixed = placed({**sent, "buffers": buffers, "facts": {}})
    arguments = carry, fixed, index, data.pool.x, data.pool.y
    program = traced(partial(central_step, model, local, data), *arguments, repeatable=False)
    step = partial(program, *arguments)
    if device.type != "cuda":
        return step
    graph, _ = captured(step, None)

    def replay(held: Any = arguments) -> None:  # the graph moves the arguments' memory
        graph.replay()

    return replay


def copied(tree: Any) -> Any:
    """The tree's tensors as copies in the usual layout."""
    return tree_map_only(Tensor, partial(torch.clone, memory_format=torch.contiguous_format), tree)


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
