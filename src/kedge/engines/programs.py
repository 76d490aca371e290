"""What a stack runs: one step of every row, and the end of a round; as programs, compiled or not."""

from __future__ import annotations  # dynamo does not evaluate the annotations of inner functions

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import Carry, class_means, class_sums, finish, local_step
from kedge.core.model import Batch, Model
from kedge.core.server import upload_weights
from kedge.core.tree import Leaves, Tree, finite_rows, tree_map, where
from kedge.data.federation import Federation
from kedge.engines.cuda.tracing import without_advice
from kedge.engines.engine import Totals, lr_times, weighted_totals
from kedge.torch_private import dynamo_config, trace_random_functions

BUCKETS = (1, 2, 4, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024)


def stacked_step(
    algorithm: Algorithm,
    model: Model,
    local: LocalTraining,
    federation: Federation,
    leaves: tuple[str, ...],
    masked: bool,
    apart: bool,
    carry: Carry,
    pool_x: Tensor,
    pool_y: Tensor,
    index: Tensor,
    weight: Tensor,
    key: Tensor,
    moves: Tensor,
    alive: Tensor,
    facts: Leaves,
    statistics: Leaves,
    anchor: Leaves,
    broadcast: Tree,
    lr: Tensor,
) -> Carry:
    """One step of every row; `statistics` are batch norm's at the start of the round.

    `apart`: anchor, broadcast and lr have one row a client, for rows of several runs.
    """
    batch = Batch(federation.inputs(pool_x[index], moves), pool_y[index], weight, key)

    def one(
        carry: Carry,
        batch: Batch,
        alive: Tensor,
        facts: Leaves,
        sent: Leaves,
        anchor: Leaves,
        broadcast: Tree,
        lr: Tensor,
    ) -> Carry:
        fixed = {"anchor": anchor, "buffers": sent, "broadcast": broadcast, "facts": facts, "lr": lr}
        moved = local_step(algorithm, model, local, leaves, carry, batch, fixed)
        return where(alive, moved, carry) if masked else moved

    rows = 0 if apart else None
    after: Carry = vmap(one, (0, 0, 0, 0, 0, rows, rows, rows))(
        carry, batch, alive, facts, statistics, anchor, broadcast, lr
    )
    # One layout of inputs and outputs, hence one program for the first and for every later step.
    return tree_map(torch.Tensor.contiguous, after) if torch.compiler.is_compiling() else after


def stacked_end(
    algorithm: Algorithm,
    model: Model,
    momentum: float,
    apart: bool,
    carry: Carry,
    facts: Leaves,
    anchor: Leaves,
    broadcast: Tree,
    lr: Tensor,
    steps: Tensor,
    trained: Tensor,
    living: Tensor,
    sums: Leaves | None,
) -> tuple[dict[str, Any], dict[str, Any], Tensor, Totals]:
    """Memories and uploads of every row, whether they are finite, and the sums over the living rows.

    Rows of several runs (`apart`) have a sum for each run: `living` is [runs, rows] then.
    """

    def one(
        carry: Carry,
        facts: Leaves,
        steps: Tensor,
        times: Leaves,
        sums: Leaves | None,
        anchor: Leaves,
        broadcast: Tree,
        lr: Tensor,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        fixed = {"anchor": anchor, "broadcast": broadcast, "facts": facts, "lr": lr}
        return finish(algorithm, carry, fixed, steps, times, class_means(sums) if sums else None)

    rows = 0 if apart else None
    times = lr_times(model, steps, trained, lr, momentum)
    slots, uploads = vmap(one, (0, 0, 0, 0, 0, rows, rows, rows))(
        carry, facts, steps, times, sums or {}, anchor, broadcast, lr
    )
    own_leaves = {k: v for k, v in carry["params"].items() if k not in anchor}
    admitted = finite_rows({"slots": slots, "uploads": uploads, "local": own_leaves})
    totals = weighted_totals(upload_weights(algorithm), uploads, facts, living)
    return slots, uploads, admitted, totals


def stacked_survey(
    model: Model,
    federation: Federation,
    params: Leaves,
    buffers: Leaves,
    pool_x: Tensor,
    pool_y: Tensor,
    index: Tensor,
    weight: Tensor,
) -> Leaves:
    """Sums by class of the features of one batch of every row."""
    key = torch.zeros(len(index), 2, dtype=torch.int64, device=index.device)
    batch = Batch(federation.prepare(pool_x[index]), pool_y[index], weight, key)
    sums: Leaves = vmap(partial(class_sums, model, federation.classes))(params, buffers, batch)
    return sums


def compiled(function: Callable[..., Any], half: bool = False) -> Callable[..., Any]:
    """The function compiled as a program of its own; `half`: it computes in bfloat16.

    Dynamo keeps its programs, and checks their guards one after another, per code object: hence a copy of the
    code. The modules inside belong to the model alone and never change, so they need no guards. In bfloat16
    the program keeps every intermediate rounding: otherwise gradients that compare numbers are wrong
    (tracing.py).
    """

    def program(*args: Any) -> Any:
        return function(*args)

    never_fall_back()
    trace_everything()
    without_advice()
    own = FunctionType(program.__code__.replace(), program.__globals__, "program", None, program.__closure__)
    unguarded: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    options = unguarded | {"emulate_precision_casts": half}
    return torch.compile(own, fullgraph=True, dynamic=False, options=options)


def cpu_keeps_rounding() -> bool:
    """Whether torch's compiler keeps every rounding to bfloat16 on a CPU, as it does from 2.13 on."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 13)


def never_fall_back() -> None:
    """A hit of dynamo's limit is an error, not eager work without a word; torch keeps this by thread."""
    config = dynamo_config()  # not before something is compiled: it takes a second
    config.recompile_limit = 1024
    config.fail_on_recompile_limit_hit = True


def trace_everything() -> None:
    """Let dynamo trace kedge's recurrent layers, and the random functions that `KeyedFunctions` replaces."""
    dynamo_config().allow_rnn = True
    trace_random_functions()


def bucket(count: int) -> int:
    """The number of rows that `count` clients are padded to."""
    return next((size for size in BUCKETS if size >= count), count)
