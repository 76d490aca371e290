"""assemble: make the Task of a resolved experiment, with data, model and stages as objects.

`kedge.train` calls it, too, and passes the data, the module and the stages as Python objects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from kedge.config.checks import (
    check_augment,
    check_model,
    check_precision,
    check_rules,
    check_schedules,
    check_tuning,
)
from kedge.config.diagnostics import check_measures, with_diagnostics
from kedge.config.experiment import EngineChoice, Evaluation, Experiment, options_of
from kedge.config.factories import factory_of
from kedge.config.federations import federation_of
from kedge.config.forward_check import with_checked_forward
from kedge.config.privacy_checks import check_covered, check_privacy
from kedge.config.schema import parameters
from kedge.config.stages import adapted_model, common_rebuild, stages_of, with_measurements
from kedge.config.task import Task
from kedge.core.algorithm import Stage, Tune
from kedge.core.errors import RequestError
from kedge.core.frozen import place_frozen
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.nn.from_module import from_module, seeded
from kedge.nn.precision import DTYPES, in_precision
from kedge.nn.units import check_trainable
from kedge.privacy.clipping import with_clipping

NO_CUDA = "engine.device = 'cuda', but torch finds no CUDA device: training on the CPU"


@dataclass(frozen=True, eq=False)
class Objects:
    """Python objects in place of the tables [data], [partition], [model] and [method] of an experiment."""

    federation: Federation
    module: nn.Module  # training starts from its weights
    stages: Sequence[Stage]


def assemble(
    experiment: Experiment, objects: Objects | None = None, federation: Federation | None = None
) -> Task:
    """The task of an experiment, with its data on the device.

    A client of a federation over the network gives its own data as `federation`.
    """
    choice, check = experiment.engine, check_privacy if federation is None else check_covered
    device = torch.device(device_of(choice))
    check_precision(choice.precision, device)
    if federation is None:
        federation = objects.federation if objects else federation_of(experiment)
    federation = federation.to(device, DTYPES[choice.precision])
    federation = replace(federation, augment=experiment.training.augment)
    check_augment(federation)
    stages = objects.stages if objects else stages_of(experiment)
    stages = with_measurements(stages, experiment.evaluation.all)
    network = initial_model(experiment, federation, stages, objects.module if objects else None)
    model = in_precision(adapted_model(network, stages), choice.precision)
    check_model(model, federation)
    model = with_checked_forward(model, federation)
    check_schedules(stages, model)
    model = place_frozen(model, federation.dtype, device)
    task = Task(
        stages=with_diagnostics(stages, model, experiment.measure),
        model=model,
        federation=federation,
        participation=experiment.participation,
        seed=experiment.seed,
        evaluate_every=experiment.evaluation.every,
        on_divergence=experiment.training.on_divergence,
        tune=tuning_choice(experiment.evaluation),
        tune_every=experiment.evaluation.tune_every,
        headline=experiment.evaluation.headline,
        measure=experiment.measure,
        precision=choice.precision,
        privacy=experiment.privacy,
    )
    check_rules(task)
    check_measures(task)
    check_tuning(task)
    check(task)
    return with_private_stages(task)


def with_private_stages(task: Task) -> Task:
    """The task whose clients clip their deltas, if it is private."""
    stages = [replace(s, algorithm=with_clipping(s.algorithm, task.privacy)) for s in task.stages]
    return replace(task, stages=stages) if task.privacy.active else task


def initial_model(
    experiment: Experiment, federation: Federation, stages: Sequence[Stage], module: nn.Module | None
) -> Model:
    """The model of `module`, or of the table [model] if it is None, after `Algorithm.rebuild`."""
    training, rebuild = experiment.training, common_rebuild(stages)
    if module is not None:
        rebuilt = seeded(lambda: rebuild(module), experiment.seed)
        return from_module(rebuilt, statistics=training.statistics, units=training.units)
    make = module_factory(experiment, federation)

    def build() -> nn.Module:
        return rebuild(make())

    return from_module(seeded(build, experiment.seed), build, training.statistics, training.units)


def module_factory(experiment: Experiment, federation: Federation) -> Callable[[], nn.Module]:
    """A function that makes the network of the table [model]."""
    name = experiment.model["name"]
    factory = factory_of("model", name)
    from_data = {"shape": tuple(federation.pool.x.shape[1:]), "classes": federation.classes}
    options = options_of(experiment.model) | {k: v for k, v in from_data.items() if k in parameters(factory)}

    def make() -> nn.Module:
        module = factory(**options)
        if not isinstance(module, nn.Module):
            raise RequestError(
                f"model.name = {name!r}: it returns a {type(module).__name__}, not an nn.Module."
            )
        check_trainable(module)
        return module

    return make


def tuning_choice(evaluation: Evaluation) -> Tune | Literal["method", "off"]:
    """The table [evaluation] as the field `Task.tune`: the fine-tuning of personal models."""
    if evaluation.tune == "method" or evaluation.tune == "off":
        return evaluation.tune
    return Tune(evaluation.tune_epochs, evaluation.tune)


def device_of(choice: EngineChoice) -> str:
    """The device to use: the CPU if it is chosen, or if torch finds no CUDA device."""
    return "cuda" if choice.device != "cpu" and torch.cuda.is_available() else "cpu"
