"""Checks of a task before it runs. Each raises a RequestError if two parts do not fit together."""

from collections.abc import Sequence
from math import prod

import torch

from kedge.config.forward_check import preserve_generators
from kedge.config.metrics import expected_metrics, tune_of
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, model_for
from kedge.core.errors import DataError, RequestError
from kedge.core.frozen import frozen_note
from kedge.core.model import Batch, Model
from kedge.core.schedules import Clock
from kedge.data.federation import Federation
from kedge.nn.naming import FORWARD_ERRORS, error_text
from kedge.nn.precision import Precision
from kedge.rules.plateau import Plateau


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise if the precision is tf32 and the device is not a GPU."""
    if precision == "tf32" and device.type != "cuda":
        raise RequestError("engine.precision = 'tf32': needs a CUDA device. Allowed here: fp64, fp32, bf16.")


def check_augment(federation: Federation) -> None:
    """Raise if augmentation is on and the samples are not images."""
    shape = tuple(federation.pool.x.shape[1:])
    if federation.augment != "none" and len(shape) != 3:
        raise RequestError(
            f"training.augment = {federation.augment!r}: need images [channels, height, width]; "
            f"the data have shape {shape}."
        )


def check_schedules(stages: Sequence[Stage], model: Model) -> None:
    """Raise if the method or the schedule of a stage does not fit the model."""
    units = len(model.units)
    last = max(sum(stage.rounds for stage in stages) - 1, 0)
    for stage in stages:
        algorithm = stage.algorithm
        check_parts(algorithm, model_for(algorithm, model))
        try:
            masks = [algorithm.schedule(Clock(r, r, k, 10), units) for r in (0, last) for k in range(10)]
        except RequestError as error:
            note = frozen_note(model)
            raise RequestError(f"{algorithm.name}: {error}{note}" if note else str(error)) from None
        wrong_mask = next((mask for mask in masks if len(mask) != units), None)
        if wrong_mask is not None:
            raise RequestError(
                f"{algorithm.name}: its schedule returns {len(wrong_mask)} flags for a model of {units} "
                f"units; need one flag for each unit.{frozen_note(model)}"
            )
        if algorithm.head_trains and not any(mask[-1] for mask in masks):
            raise RequestError(
                f"{algorithm.name}: its schedule never trains the head, which the method must train. Use "
                "another schedule, or a method such as fedbabu."
            )


def check_parts(algorithm: Algorithm, model: Model) -> None:
    """Raise if the model lacks a part that the method needs: enough units, features."""
    try:
        if not algorithm.shared(model):
            raise RequestError(
                f"{algorithm.name} shares no parameter of this model, so clients would learn nothing from "
                f"each other. Use another method, or a model with more units.{frozen_note(model)}"
            )
        for correction in algorithm.corrections:
            correction.reach(model)
    except RequestError as error:
        named = algorithm.name in str(error)
        raise RequestError(str(error) if named else f"{algorithm.name}: {error}") from None


def check_tuning(task: Task) -> None:
    """Raise if tune = 'body' and the model has no body."""
    for stage in task.stages:
        tune = tune_of(task, stage.algorithm)
        if tune and tune.what == "body" and len(task.model.units) == 1:
            raise RequestError(
                f"tune = 'body': the model has one unit, which is the head, so nothing would be tuned. "
                f"Use 'head', 'all' or 'off'.{frozen_note(task.model)}"
            )


def check_rules(task: Task) -> None:
    """Raise if the rule that ends a stage reads a metric that the stage will not have."""
    for stage in task.stages:
        if isinstance(stage.until, Plateau):
            stage.until.check(expected_metrics(task, stage))


def check_model(model: Model, federation: Federation) -> None:
    """Raise if model and data differ in input shape, number of outputs or labels."""
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
