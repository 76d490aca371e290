"""Compiled central training, the upper limit of the table: one model, the samples of all clients together.

On a GPU its step is captured as a CUDA graph.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.algorithms import fedavg
from kedge.bench.rounds import Round
from kedge.core.algorithm import LocalTraining
from kedge.core.client import Carry, initial_carry, local_step
from kedge.core.model import Batch, Model
from kedge.core.tree import tree_to
from kedge.data.federation import Federation
from kedge.engines.cuda.graphs import capture, static_copies
from kedge.engines.cuda.tracing import trace_program
from kedge.torch_private import compiler_options, tree_map_only


def central_step(model: Model, local: LocalTraining, data: Federation) -> Callable[..., Carry]:
    """A function that takes one step of FedAvg on the samples in `index`, as a client without a stack."""

    def step(carry: Carry, fixed: Any, index: Tensor, x: Tensor, y: Tensor) -> Carry:
        weight = torch.ones(len(index), dtype=data.dtype, device=index.device)
        key = torch.zeros(2, dtype=torch.int64, device=index.device)
        batch = Batch(data.prepare(x[index]), y[index], weight, key)
        return local_step(fedavg(), model, local, tuple(carry["params"]), carry, batch, fixed)

    return step


def compiled_central(model: Model, local: LocalTraining, data: Federation, batch: int, steps: int) -> Round:
    """Rounds of `steps` steps with `batch` random samples each."""
    device = data.pool.x.device
    index = torch.zeros(batch, dtype=torch.int64, device=device)
    with fastest_convolutions():
        try:
            step = central_program(model, local, data, index, static_copies)
        except AssertionError as error:
            # If images are 1×1, torch's compiler may expect the gradient of a kernel with channels last, as
            # the kernel has them, but cuDNN returns it with channels first. Then use channels first.
            if "stride" not in str(error):
                raise
            with compiler_options(layout_optimization=False):
                step = central_program(model, local, data, index, contiguous_copies)

    def round(number: int) -> int:
        order = torch.randint(len(data.pool), (steps, batch), device=device)
        for batch_index in order:
            index.copy_(batch_index)
            step()
        return steps * batch

    return round


def central_program(
    model: Model, local: LocalTraining, data: Federation, index: Tensor, copies: Callable[[Any], Any]
) -> Callable[[], object]:
    """Compile a function that takes one step of a new model on the samples in `index`.

    `copies` returns copies of a tree's tensors in the memory format of the program.
    """
    device = data.pool.x.device
    params, buffers = (tree_to(v, data.dtype, device) for v in model.init(0))
    lr = torch.tensor(local.optimizer.rate(0), dtype=data.dtype, device=device)
    carry = copies(initial_carry(local, params, buffers, {}))
    round = torch.zeros((), dtype=torch.int64, device=device)
    sent = {"anchor": params, "broadcast": {}, "lr": lr, "round": round}
    fixed = copies({**sent, "buffers": buffers, "facts": {}})
    arguments = carry, fixed, index, data.pool.x, data.pool.y
    program = trace_program(central_step(model, local, data), *arguments, repeatable=False)
    step = partial(program, *arguments)
    if device.type != "cuda":
        return step
    graph, _ = capture(step, None)

    def replay(kept: Any = arguments) -> None:  # the graph reads and writes the memory of the arguments
        graph.replay()

    return replay


def contiguous_copies(tree: Any) -> Any:
    """Copies of all tensors in the contiguous memory format."""
    return tree_map_only(Tensor, partial(torch.clone, memory_format=torch.contiguous_format), tree)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN measure its algorithms and use the fastest."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = True, False
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
