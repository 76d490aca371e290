"""The programs of a stack: a step of every row, the end of a round, a survey of features."""

from __future__ import annotations  # dynamo does not evaluate the annotations of inner functions

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import Carry, class_means, class_sums, finish, local_step
from kedge.core.model import Batch, Model
from kedge.core.server import upload_weights
from kedge.core.tree import Leaves, Tree, finite_rows, tree_map, where
from kedge.data.batch_table import StepBatch
from kedge.data.federation import Federation
from kedge.engines.cuda.tracing import hide_compiler_advice
from kedge.engines.leaves import lr_times
from kedge.engines.sums import Totals, weighted_totals
from kedge.torch_private import dynamo_config, trace_random_functions

BUCKETS = (1, 2, 4, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024)


class StepProgram(NamedTuple):
    """The constants of a step's program; other values need another program."""

    algorithm: Algorithm
    model: Model
    local: LocalTraining
    federation: Federation
    leaves: tuple[str, ...]  # the leaves that train
    masked: bool  # whether some rows may lack this step
    per_row: bool  # whether anchor, broadcast, lr and round have one row per client: rows of several runs


class StepInputs(NamedTuple):
    """The inputs of a step that stay the same through a round."""

    facts: Leaves  # [clients, ...]
    statistics: Leaves  # batch norm's statistics at the start of the round, [clients, ...]
    anchor: Leaves  # the shared leaves as the server sent them
    broadcast: Tree
    lr: Tensor
    round: Tensor


# `in_dims` of vmap: every row has its own anchor, broadcast, lr and round; or all rows share them.
PER_ROW_AXES = StepInputs._make((0, 0, 0, 0, 0, 0))
COMMON_AXES = StepInputs._make((0, 0, None, None, None, None))


class EndProgram(NamedTuple):
    """The constants of the program that ends a round; other values need another program."""

    algorithm: Algorithm
    model: Model
    momentum: float
    per_row: bool


class EndInputs(NamedTuple):
    """The inputs of the end of a round besides the carry."""

    facts: Leaves  # [clients, ...]
    anchor: Leaves
    broadcast: Tree
    lr: Tensor
    steps: Tensor  # [clients]
    trained: Tensor  # [clients, units]: steps in which a unit trained
    sums: Leaves | None  # sums of features by class, [clients, ...]


class StackEnd(NamedTuple):
    """The results of a stack's round, on the device."""

    slots: dict[str, Any]  # the corrections' new memories, one row per client
    uploads: dict[str, Any]  # one row per client
    admitted: Tensor  # [clients]: whether all results of the client are finite
    totals: Totals  # weighted sums over the rows of clients; for rows of several runs, one sum per run


def stacked_step(
    program: StepProgram, carry: Carry, step: StepBatch, pool: tuple[Tensor, Tensor], inputs: StepInputs
) -> Carry:
    """One optimizer step of every row; `pool` has the samples and labels of all clients."""
    algorithm, model, local, federation, leaves, masked, per_row = program
    pool_x, pool_y = pool
    x = federation.inputs(pool_x[step.samples], step.moves)
    batch = Batch(x, pool_y[step.samples], step.weight, step.key)

    def step_row(carry: Carry, batch: Batch, alive: Tensor, inputs: StepInputs) -> Carry:
        fixed = {
            "anchor": inputs.anchor, "buffers": inputs.statistics, "broadcast": inputs.broadcast,
            "facts": inputs.facts, "lr": inputs.lr, "round": inputs.round,
        }  # fmt: skip
        after_step = local_step(algorithm, model, local, leaves, carry, batch, fixed)
        return where(alive, after_step, carry) if masked else after_step

    axes = PER_ROW_AXES if per_row else COMMON_AXES
    after: Carry = vmap(step_row, (0, 0, 0, axes))(carry, batch, step.alive, inputs)
    # Outputs have the layout of the inputs, so one program serves the first and every later step.
    return tree_map(torch.Tensor.contiguous, after) if torch.compiler.is_compiling() else after


def stacked_end(program: EndProgram, carry: Carry, inputs: EndInputs, real_rows: Tensor) -> StackEnd:
    """Memories and uploads of every row, whether they are finite, and weighted sums over the rows of clients.

    `real_rows` is true for a client and false for padding: [rows], or [runs, rows] for one sum per run.
    """
    algorithm, model, momentum, per_row = program
    facts, anchor, broadcast, lr, steps, trained, sums = inputs

    def end_row(
        carry: Carry, of_client: tuple[Leaves, Tensor, Leaves, Leaves], sent: tuple[Leaves, Tree, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        (facts, steps, times, sums), (anchor, broadcast, lr) = of_client, sent
        fixed = {"anchor": anchor, "broadcast": broadcast, "facts": facts, "lr": lr}
        return finish(algorithm, carry, fixed, steps, times, class_means(sums) if sums else None)

    times = lr_times(model, steps, trained, lr, momentum)
    slots, uploads = vmap(end_row, (0, 0, 0 if per_row else None))(
        carry, (facts, steps, times, sums or {}), (anchor, broadcast, lr)
    )
    unshared = {k: v for k, v in carry["params"].items() if k not in anchor}
    admitted = finite_rows({"slots": slots, "uploads": uploads, "local": unshared})
    totals = weighted_totals(upload_weights(algorithm), uploads, facts, real_rows)
    return StackEnd(slots, uploads, admitted, totals)


def stacked_survey(
    model: Model,
    federation: Federation,
    carry: Carry,
    pool: tuple[Tensor, Tensor],
    index: Tensor,
    weight: Tensor,
) -> Leaves:
    """Sums by class of the features of a batch, for every row: samples `index`, with weight 0 for padding."""
    pool_x, pool_y = pool
    key = torch.zeros(len(index), 2, dtype=torch.int64, device=index.device)
    batch = Batch(federation.prepare(pool_x[index]), pool_y[index], weight, key)
    sums: Leaves = vmap(partial(class_sums, model, federation.classes))(
        carry["params"], carry["buffers"], batch
    )
    return sums


def compiled(function: Callable[..., Any], half: bool = False) -> Callable[..., Any]:
    """`function`, compiled by torch.compile; `half`: it computes in bfloat16.

    Dynamo caches programs per code object, and checks their guards one after another: each function is
    compiled from a copy of the code, so that it has one program to check. No other code changes the modules
    of the model, so they need no guards. In bfloat16 the program keeps every intermediate rounding: otherwise
    gradients that compare numbers are wrong (cuda/tracing.py).
    """

    def program(*args: Any) -> Any:
        return function(*args)

    never_fall_back()
    trace_everything()
    hide_compiler_advice()
    copy = FunctionType(program.__code__.replace(), program.__globals__, "program", None, program.__closure__)
    unguarded: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    options = unguarded | {"emulate_precision_casts": half}
    return torch.compile(copy, fullgraph=True, dynamic=False, options=options)


def cpu_keeps_rounding() -> bool:
    """Whether torch's compiler keeps every rounding to bfloat16 on a CPU, as it does from 2.13 on."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 13)


def never_fall_back() -> None:
    """Make dynamo raise an error at its recompile limit instead of running eagerly; a setting per thread."""
    config = dynamo_config()  # imported at the first compilation, because the import takes a second
    config.recompile_limit = 1024
    config.fail_on_recompile_limit_hit = True


def trace_everything() -> None:
    """Let dynamo trace kedge's recurrent layers, and the random functions that `KeyedFunctions` replaces."""
    dynamo_config().allow_rnn = True
    trace_random_functions()


def bucket(count: int) -> int:
    """The number of rows to which a stack of `count` clients is padded."""
    return next((size for size in BUCKETS if size >= count), count)
