"""Stages, algorithms and local training from the tables of an experiment."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any

from torch import nn

from kedge.config.experiment import Experiment, combined_methods, label_of, options_of
from kedge.config.factories import factory_of
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, adapt_parts, with_schedule
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.optimizers import Optimizer
from kedge.measure.last_models import LastModels


def stages_of(experiment: Experiment, optimizer: Optimizer | None = None) -> tuple[Stage, ...]:
    """The stages of an experiment; `optimizer` replaces the table [optimizer]."""
    local = local_training(experiment, optimizer)
    return tuple(
        Stage(
            algorithm_of(method, schedule),
            rounds,
            local,
            factory_of("when", rule["name"])(**options_of(rule)) if rule else None,
        )
        for method, schedule, rounds, rule in experiment.stages
    )


def with_measurements(stages: Sequence[Stage], last_models: bool) -> tuple[Stage, ...]:
    """The stages with the corrections that only measure: for their rules, and for the model `all`."""
    extended = []
    for stage in stages:
        extend = getattr(stage.until, "with_measurements", None)  # a rule may also be a plain function
        algorithm = extend(stage.algorithm) if extend else stage.algorithm
        if last_models:
            algorithm = replace(algorithm, corrections=(*algorithm.corrections, LastModels()))
        extended.append(replace(stage, algorithm=algorithm))
    return tuple(extended)


def common_rebuild(stages: Sequence[Stage]) -> Callable[[nn.Module], nn.Module]:
    """The `Algorithm.rebuild` of all stages; raise if they differ."""
    functions = {stage.algorithm.rebuild: stage.algorithm.name for stage in stages}
    if len(functions) > 1:
        raise RequestError(
            f"{' -> '.join(stage.algorithm.name for stage in stages)}: these methods train different "
            "networks, so none can follow another. For moon, projection = 0 keeps the network as it is."
        )
    return next(iter(functions))


def adapted_model(model: Model, stages: Sequence[Stage]) -> Model:
    """The model with the heads of the methods of all stages."""
    for adapt in dict.fromkeys(part for stage in stages for part in adapt_parts(stage.algorithm.adapt)):
        model = adapt(model)
    unknown = set(model.extra) - {k for stage in stages for k in stage.algorithm.heads}
    if unknown:
        raise RequestError(f"heads that no method lists: {', '.join(sorted(unknown))}. Set Algorithm.heads.")
    return model


def algorithm_of(method: dict[str, Any], schedule: dict[str, Any]) -> Algorithm:
    """The algorithm of a table [method] and a table [schedule]."""
    base = reduce(and_, map(single_algorithm, combined_methods(method)))
    if schedule["name"] == "all":
        return base
    added = factory_of("schedule", schedule["name"])(**options_of(schedule))
    return with_schedule(base, added, label_of(method, schedule))


def single_algorithm(method: dict[str, Any]) -> Algorithm:
    """The algorithm of one method's table, without the methods in [[method.and]]."""
    algorithm = factory_of("method", method["name"])(**options_of(method))
    if not isinstance(algorithm, Algorithm):
        raise RequestError(
            f"method.name = {method['name']!r}: it returns a {type(algorithm).__name__}, not an Algorithm."
        )
    return algorithm


def local_training(experiment: Experiment, optimizer: Optimizer | None = None) -> LocalTraining:
    """Local training of all stages; `optimizer` replaces the table [optimizer]."""
    training = experiment.training
    if optimizer is None:
        factory = factory_of("optimizer", experiment.optimizer["name"])
        optimizer = factory(**options_of(experiment.optimizer))
    clip = None if training.clip == "off" else training.clip
    return LocalTraining(training.epochs, training.batch, optimizer, clip, training.drop_last)
