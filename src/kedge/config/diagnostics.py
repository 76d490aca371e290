"""Measurements of the table [measure]: corrections that only measure, and the samples for features."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, model_for
from kedge.core.correction import Correction
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.measure.settings import Measure
from kedge.measure.updates import Updates
from kedge.rules.gradient_spread import GradientSpread


def with_diagnostics(stages: Sequence[Stage], model: Model, measure: Measure) -> tuple[Stage, ...]:
    """The stages with the corrections that measure drift and spread."""
    extended = tuple(
        replace(stage, algorithm=measuring_algorithm(stage.algorithm, model, measure)) for stage in stages
    )
    if measure.spread and not any(
        c.name == GradientSpread.name for stage in extended for c in stage.algorithm.corrections
    ):
        raise RequestError(
            f"measure.spread = true: C_t is computed from FedDyn's g_k, which "
            f"{' -> '.join(stage.algorithm.name for stage in stages)} does not have. Set it to false."
        )
    return extended


def check_measures(task: Task) -> None:
    """Raise if features are to be measured and the run has no test samples."""
    if task.measure.features_every:
        feature_samples(task.federation, task.measure)


def measuring_algorithm(algorithm: Algorithm, model: Model, measure: Measure) -> Algorithm:
    """The method with the corrections that measure drift and spread."""
    added: list[Correction] = []
    slots = {c.name for c in algorithm.corrections}
    dynamic = [c for c in algorithm.corrections if isinstance(c, DynamicRegularizer) and c.alpha]
    if measure.spread and dynamic and GradientSpread.name not in slots:
        added.append(GradientSpread(dynamic[0].alpha, dynamic[0].scaling))
    if measure.drift:
        added.append(Updates(shared_units(algorithm, model)))
    return replace(algorithm, corrections=(*algorithm.corrections, *added)) if added else algorithm


def shared_units(algorithm: Algorithm, model: Model) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Name and shared leaves of each unit that has shared leaves."""
    shared = algorithm.shared(model_for(algorithm, model))
    units = [tuple(k for k in unit if k in shared) for unit in model.units]
    return tuple((f"unit{number}", leaves) for number, leaves in enumerate(units) if leaves)


def feature_samples(data: Federation, measure: Measure) -> Tensor:
    """At most `measure.samples` samples of the common test set, or else of the local tests."""
    if data.test is not None:
        return evenly_spaced(data.test.x, measure.samples)
    index = np.concatenate(data.local_tests)
    if not len(index):
        raise RequestError(
            f"measure.features_every = {measure.features_every}: features are measured on test samples, and "
            "this run has none. Give a common test set or local tests (evaluation.local_test), or set it "
            "to 0."
        )
    return evenly_spaced(data.pool.x[torch.from_numpy(index).to(data.pool.x.device)], measure.samples)


def evenly_spaced(x: Tensor, count: int) -> Tensor:
    """`count` samples at equal distances, because test sets may be sorted by class; all if `x` has fewer."""
    if len(x) <= count:
        return x
    return x[torch.linspace(0, len(x) - 1, count, dtype=torch.float64).round().long().to(x.device)]
