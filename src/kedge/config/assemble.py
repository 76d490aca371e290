"""From a resolved experiment to the objects that run it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.config.dealing import federation_of
from kedge.config.diagnostics import check_measures, watched
from kedge.config.document import OPTIMIZERS
from kedge.config.experiment import EngineChoice, Evaluation, Experiment, label_of, options_of
from kedge.config.factories import factory_of
from kedge.config.forward_check import preserve_generators, with_checked_forward
from kedge.config.metrics import measurable
from kedge.config.metrics import tune_of as tune_for
from kedge.config.schema import parameters
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune, fitted, with_schedule
from kedge.core.errors import DataError, RequestError
from kedge.core.frozen import frozen_note, place_frozen
from kedge.core.model import Batch, Model
from kedge.core.schedules import Clock
from kedge.data.federation import Federation
from kedge.measure.last_models import LastModels
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded
from kedge.nn.naming import FORWARD_ERRORS, error_text
from kedge.nn.precision import DTYPES, Precision, in_precision
from kedge.nn.units import check_trainable
from kedge.rules import RULES
from kedge.rules.plateau import Plateau

NO_CUDA = "engine.device: 'cuda' is asked for, and torch sees no CUDA device here: this runs on the CPU"


def assemble(experiment: Experiment) -> Task:
    """The task an experiment describes, with its data on the device."""
    federation = federation_of(experiment)
    device = torch.device(device_of(experiment.engine))
    check_precision(experiment.engine.precision, device)
    federation = federation.to(device, DTYPES[experiment.engine.precision])
    federation = replace(federation, augment=experiment.training.augment)
    check_augment(federation)
    factory = factory_of("model", MODELS, experiment.model["name"])
    given = {"shape": tuple(federation.pool.x.shape[1:]), "classes": federation.classes}
    options = options_of(experiment.model) | {k: v for k, v in given.items() if k in parameters(factory)}

    stages = stages_of(experiment)
    rebuild = rebuilding(stages)

    def build() -> nn.Module:
        module = factory(**options)
        if not isinstance(module, nn.Module):
            name = experiment.model["name"]
            raise RequestError(f"model.name = {name!r}: it makes a {type(module).__name__}, no nn.Module.")
        check_trainable(module)
        return rebuild(module)

    training = experiment.training
    plain = from_module(seeded(build, experiment.seed), build, training.statistics, training.units)
    model = in_precision(adapted(plain, stages), experiment.engine.precision)
    check_model(model, federation)
    model = with_checked_forward(model, federation)
    check_schedules(stages, model)
    model = place_frozen(model, federation.dtype, device)
    stages = watched(stages, model, experiment.measure)
    task = Task(
        stages=stages,
        model=model,
        federation=federation,
        participation=experiment.participation,
        seed=experiment.seed,
        evaluate_every=experiment.evaluation.every,
        on_divergence=experiment.training.on_divergence,
        tune=tune_of(experiment.evaluation),
        tune_every=experiment.evaluation.tune_every,
        headline=experiment.evaluation.headline,
        measure=experiment.measure,
        precision=experiment.engine.precision,
    )
    check_rules(task)
    check_measures(task)
    check_tuning(task)
    return task


def stages_of(experiment: Experiment) -> tuple[Stage, ...]:
    """The stages with what has to be seen of them: by the rules that end them, and for the `all` model."""
    stages = []
    for method, schedule, rounds, rule in experiment.stages:
        algorithm = algorithm_of(method, schedule)
        until = factory_of("when", RULES, rule["name"])(**options_of(rule)) if rule else None
        if until:
            algorithm = until.watched(algorithm)
        if experiment.evaluation.all:
            algorithm = replace(algorithm, corrections=(*algorithm.corrections, LastModels()))
        stages.append(Stage(algorithm, rounds, local_of(experiment), until))
    return tuple(stages)


def rebuilding(stages: Sequence[Stage]) -> Callable[[nn.Module], nn.Module]:
    """What the methods make of the network; stages must agree on it."""
    ways = {stage.algorithm.rebuild: stage.algorithm.name for stage in stages}
    if len(ways) > 1:
        raise RequestError(
            f"{' -> '.join(stage.algorithm.name for stage in stages)}: these methods train different "
            "networks, so none can follow another. For moon, projection = 0 leaves the network as it is."
        )
    return next(iter(ways))


def adapted(model: Model, stages: Sequence[Stage]) -> Model:
    """The model with the heads that the methods of all stages add."""
    for adapt in dict.fromkeys(stage.algorithm.adapt for stage in stages):
        model = adapt(model)
    unknown = set(model.extra) - {k for stage in stages for k in stage.algorithm.heads}
    if unknown:
        raise RequestError(f"heads that no method lists: {', '.join(sorted(unknown))}. Set Algorithm.heads.")
    return model


def tune_of(evaluation: Evaluation) -> Tune | Literal["method", "off"]:
    """How personal models are fine-tuned before they are measured."""
    if evaluation.tune == "method" or evaluation.tune == "off":
        return evaluation.tune
    return Tune(evaluation.tune_epochs, evaluation.tune)


def algorithm_of(method: dict[str, Any], schedule: dict[str, Any]) -> Algorithm:
    """The method under its schedule; where a method has one of its own, a unit trains if both open it."""
    base = factory_of("method", METHOD_FACTORIES, method["name"])(**options_of(method))
    if not isinstance(base, Algorithm):
        raise RequestError(
            f"method.name = {method['name']!r}: it returns a {type(base).__name__}, no Algorithm."
        )
    if schedule["name"] == "all":
        return base
    named = factory_of("schedule", SCHEDULE_FACTORIES, schedule["name"])(**options_of(schedule))
    return with_schedule(base, named, label_of(method, schedule))


def local_of(experiment: Experiment) -> LocalTraining:
    """How clients train."""
    training = experiment.training
    factory = factory_of("optimizer", OPTIMIZERS, experiment.optimizer["name"])
    optimizer = factory(**options_of(experiment.optimizer))
    clip = None if training.clip == "off" else training.clip
    return LocalTraining(training.epochs, training.batch, optimizer, clip, training.drop_last)


def check_precision(precision: Precision, device: torch.device) -> None:
    """tf32 is a way of GPUs; a run that says it ran so must have."""
    if precision == "tf32" and device.type != "cuda":
        raise RequestError("engine.precision = 'tf32': needs a CUDA device. Allowed here: fp64, fp32, bf16.")


def device_of(choice: EngineChoice) -> str:
    """The CPU where it is asked for or all there is; who asked for CUDA has to be told then (`NO_CUDA`)."""
    return "cuda" if choice.device != "cpu" and torch.cuda.is_available() else "cpu"


def check_augment(federation: Federation) -> None:
    """Raise where samples that are no images are to be flipped."""
    shape = tuple(federation.pool.x.shape[1:])
    if federation.augment != "none" and len(shape) != 3:
        raise RequestError(
            f"training.augment = {federation.augment!r}: it moves images [channels, height, width]; "
            f"the data have shape {shape}."
        )


def check_schedules(stages: Sequence[Stage], model: Model) -> None:
    """Raise where a method or its schedule does not fit the model, in any stage, before anything is made."""
    units = len(model.units)
    last = max(sum(stage.rounds for stage in stages) - 1, 0)
    for stage in stages:
        algorithm = stage.algorithm
        check_parts(algorithm, fitted(algorithm, model))
        try:
            masks = [algorithm.schedule(Clock(r, r, k, 10), units) for r in (0, last) for k in range(10)]
        except RequestError as error:
            note = frozen_note(model)
            raise RequestError(f"{algorithm.name}: {error}{note}" if note else str(error)) from None
        wrong = next((mask for mask in masks if len(mask) != units), None)
        if wrong is not None:
            raise RequestError(
                f"{algorithm.name}: its schedule gives {len(wrong)} flags for a model of {units} units; "
                f"need one a unit.{frozen_note(model)}"
            )
        if algorithm.head_trains and not any(mask[-1] for mask in masks):
            raise RequestError(
                f"{algorithm.name}: its schedule never trains the head, but the method is about how the head "
                "is trained. Use another schedule, or a method such as fedbabu."
            )


def check_parts(algorithm: Algorithm, model: Model) -> None:
    """Raise where a method is about a part that the model does not have: some last units, features."""
    try:
        if not algorithm.shared(model):
            raise RequestError(
                f"{algorithm.name} shares no parameter of this model, so clients would learn nothing from "
                f"each other. Use another method, or a model with more units.{frozen_note(model)}"
            )
        for correction in algorithm.corrections:
            correction.reach(model)
    except RequestError as error:
        known = algorithm.name in str(error)
        raise RequestError(str(error) if known else f"{algorithm.name}: {error}") from None


def check_tuning(task: Task) -> None:
    """Raise if tune = 'body' and the model has no body."""
    for stage in task.stages:
        tune = tune_for(task, stage.algorithm)
        if tune and tune.what == "body" and len(task.model.units) == 1:
            raise RequestError(
                f"tune = 'body': the model has one unit, which is the head, so nothing would be tuned. "
                f"Use 'head', 'all' or 'off'.{frozen_note(task.model)}"
            )


def check_rules(task: Task) -> None:
    """Raise where a stage waits for a metric that it will not have."""
    for stage in task.stages:
        if isinstance(stage.until, Plateau):
            stage.until.check(measurable(task, stage))


def check_model(model: Model, federation: Federation) -> None:
    """Raise where the model and the data do not fit: input shape, number of outputs, labels."""
    params, buffers = model.init(0)
    x = federation.prepare(federation.pool.x[:1]).cpu().to(next(iter(params.values())).dtype)
    batch = Batch(
        x, federation.pool.y[:1].cpu(), torch.ones(1, dtype=x.dtype), torch.zeros(2, dtype=torch.int64)
    )
    shape = tuple(federation.pool.x.shape[1:])
    try:
        with torch.no_grad(), preserve_generators():
            out, _ = model.apply(params, buffers, batch, False)
    except FORWARD_ERRORS as error:
        raise RequestError(
            f"the model cannot take samples of shape {shape} ({prod(shape)} values): {error_text(error)}"
        ) from error
    if out.logits.dim() != 2:
        raise RequestError(
            f"the model returns shape {tuple(out.logits.shape)}: need logits [batch, classes]."
        )
    highest = int(max(federation.pool.y.max(), federation.test.y.max() if federation.test else 0))
    if highest >= federation.classes:
        raise DataError(
            f"label {highest} is outside the {federation.classes} classes 0…{federation.classes - 1}."
        )
    if out.logits.shape[1] != federation.classes:
        raise RequestError(
            f"the model has {out.logits.shape[1]} outputs, the data have {federation.classes} classes "
            f"(labels 0…{federation.classes - 1}): make them agree."
        )
