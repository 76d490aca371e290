"""The sequential and the stacked engine agree for any setting, chunk and order of clients."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.audit.finding import Finding, compare_trees, no_violations, worst_finding
from kedge.audit.problems import ALL_CLIENTS, IMAGE, SIZES, SOME_CLIENTS, convolutional, federation
from kedge.audit.training import ENGINES, run_state, train_rounds
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.selections import Selection
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked

TOLERANCE = 1e-12  # float64, relative to the largest parameter, after three rounds
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)


class Setting(NamedTuple):
    """A network, clients and local training for which engines are compared."""

    local: LocalTraining = LOCAL
    network: Callable[[Algorithm], Model] = convolutional
    shape: Sequence[int] = IMAGE
    sizes: Sequence[int] = SIZES
    cohorts: Sequence[Sequence[int]] = ALL_CLIENTS
    chunk: int = 0  # clients in one stack; 0: all


def engines_agree(algorithm: Algorithm, setting: Setting) -> Finding:
    """Both engines have the same server, memories and statistics after the rounds of `setting`."""
    data, model = federation(setting.sizes, setting.shape), setting.network(algorithm)
    plain, stacked = (
        state_after(algorithm, setting.local, engine, model, data, setting.cohorts)
        for engine in (Sequential(model, data), Stacked(model, data, setting.chunk))
    )
    return compare_trees(plain, stacked, plain["server"]["shared"], TOLERANCE)


def part_shared(algorithm: Algorithm, part: Selection) -> Finding:
    """The engines agree if clients share only `part` of the model."""
    return engines_agree(replace(algorithm, shared=part), Setting(cohorts=SOME_CLIENTS, chunk=2))


def state_after(
    algorithm: Algorithm,
    local: LocalTraining,
    engine: Engine,
    model: Model,
    data: Federation,
    cohorts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """All state of a run after one round for each of `cohorts`."""
    return run_state(train_rounds(algorithm, local, engine, model, data, cohorts), engine)


def chunks_agree(algorithm: Algorithm) -> Finding:
    """Stacks of one and of three clients train the same as one stack of all four."""
    data, model = federation(shape=IMAGE), convolutional(algorithm)
    all_clients, single, three = (
        state_after(algorithm, LOCAL, Stacked(model, data, chunk), model, data, ALL_CLIENTS)
        for chunk in (0, 1, 3)
    )
    scale = all_clients["server"]["shared"]
    return worst_finding(*(compare_trees(all_clients, other, scale, TOLERANCE) for other in (single, three)))


def order_is_irrelevant(algorithm: Algorithm) -> Finding:
    """The order of the participants does not change the state, on both engines."""
    data, model = federation(shape=IMAGE), convolutional(algorithm)
    reverse = [clients[::-1] for clients in SOME_CLIENTS]
    findings = []
    for engine in ENGINES.values():
        forward, backward = (
            state_after(algorithm, LOCAL, engine(model, data), model, data, cohorts)
            for cohorts in (SOME_CLIENTS, reverse)
        )
        findings.append(compare_trees(forward, backward, forward["server"]["shared"], TOLERANCE))
    return worst_finding(*findings)


def precision_is_kept(algorithm: Algorithm) -> Finding:
    """All state of a run in float32 is float32, and in float64 float64, on both engines."""
    model = convolutional(algorithm, statistics="local")
    wrong = []
    for dtype in (torch.float32, torch.float64):
        data = federation(shape=IMAGE, dtype=dtype)
        for name, engine in ENGINES.items():
            state = state_after(algorithm, LOCAL, engine(model, data), model, data, ALL_CLIENTS[:2])
            wrong += [f"{name}: {path} is {v.dtype}" for path, v in tensors(state) if v.dtype != dtype]
    return no_violations("float32 and float64 on both engines", wrong)


def tensors(tree: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """The tensors of nested dicts with their paths."""
    if isinstance(tree, Tensor):
        return [(path, tree)]
    return [found for name, part in tree.items() for found in tensors(part, f"{path}/{name}")]
