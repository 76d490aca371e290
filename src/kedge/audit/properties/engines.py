"""The sequential and the stacked engine train the same, whatever the settings, chunks or order of clients."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.audit.finding import Finding, agreed, holds, worst
from kedge.audit.problems import (
    ALL_CLIENTS,
    ENGINES,
    IMAGE,
    SIZES,
    SOME_CLIENTS,
    convolutional,
    federation,
    run_state,
    train_rounds,
)
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.selections import Selection
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked

TOLERANCE = 1e-12  # float64, relative to the largest parameter, after three rounds
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)


class Setting(NamedTuple):
    """A network, clients and local training on which engines are compared."""

    local: LocalTraining = LOCAL
    network: Callable[[Algorithm], Model] = convolutional
    shape: Sequence[int] = IMAGE
    sizes: Sequence[int] = SIZES
    cohorts: Sequence[Sequence[int]] = ALL_CLIENTS
    chunk: int = 0  # clients in one stack; 0: all


def engines_agree(algorithm: Algorithm, setting: Setting) -> Finding:
    """Server, memories and statistics agree between the engines after the setting's rounds."""
    data, model = federation(setting.sizes, setting.shape), setting.network(algorithm)
    plain, stacked = (
        state_after(algorithm, setting.local, engine, model, data, setting.cohorts)
        for engine in (Sequential(model, data), Stacked(model, data, setting.chunk))
    )
    return agreed(plain, stacked, plain["server"]["shared"], TOLERANCE)


def part_shared(algorithm: Algorithm, part: Selection) -> Finding:
    """The engines agree where clients share only this part of the model."""
    return engines_agree(replace(algorithm, shared=part), Setting(cohorts=SOME_CLIENTS, chunk=2))


def state_after(
    algorithm: Algorithm,
    local: LocalTraining,
    engine: Engine,
    model: Model,
    data: Federation,
    cohorts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """All state of a run after a round for each of `cohorts`."""
    return run_state(train_rounds(algorithm, local, engine, model, data, cohorts), engine)


def chunks_agree(algorithm: Algorithm) -> Finding:
    """Stacks of one and of three clients give what one stack of all four gives."""
    data, model = federation(shape=IMAGE), convolutional(algorithm)
    whole, ones, threes = (
        state_after(algorithm, LOCAL, Stacked(model, data, chunk), model, data, ALL_CLIENTS)
        for chunk in (0, 1, 3)
    )
    scale = whole["server"]["shared"]
    return worst(agreed(whole, ones, scale, TOLERANCE), agreed(whole, threes, scale, TOLERANCE))


def order_is_irrelevant(algorithm: Algorithm) -> Finding:
    """Participants in reverse order give the same state, on both engines."""
    data, model = federation(shape=IMAGE), convolutional(algorithm)
    reverse = [clients[::-1] for clients in SOME_CLIENTS]
    findings = []
    for engine in ENGINES.values():
        forward, backward = (
            state_after(algorithm, LOCAL, engine(model, data), model, data, cohorts)
            for cohorts in (SOME_CLIENTS, reverse)
        )
        findings.append(agreed(forward, backward, forward["server"]["shared"], TOLERANCE))
    return worst(*findings)


def precision_is_kept(algorithm: Algorithm) -> Finding:
    """All state of a run in float32, and of one in float64, has that dtype, on both engines."""
    model = convolutional(algorithm, statistics="local")
    wrong = []
    for dtype in (torch.float32, torch.float64):
        data = federation(shape=IMAGE, dtype=dtype)
        for name, engine in ENGINES.items():
            state = state_after(algorithm, LOCAL, engine(model, data), model, data, ALL_CLIENTS[:2])
            wrong += [f"{name}: {path} is {v.dtype}" for path, v in tensors(state) if v.dtype != dtype]
    return holds(not wrong, f"float32 and float64 on both engines; wrong: {', '.join(wrong[:4]) or 'none'}")


def tensors(tree: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """The tensors of nested dicts with their paths."""
    if isinstance(tree, Tensor):
        return [(path, tree)]
    return [found for name, part in tree.items() for found in tensors(part, f"{path}/{name}")]
