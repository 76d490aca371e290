"""Checks of a private task: everything that clients send must be clipped and noised, or it is refused.

A private run releases the noised sum of the clipped deltas, and values computed from it. Each check below is
about another value that depends on the clients.
"""

from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, equal, model_for
from kedge.core.client import overrides
from kedge.core.errors import RequestError
from kedge.measure.cost.dry_run import DryRun
from kedge.measure.last_models import LastModels
from kedge.privacy.accountant import check_library
from kedge.rules.proposition1 import Proposition1


def check_privacy(task: Task) -> None:
    """Raise if a private run would release a value of the clients that has no noise."""
    if not task.privacy.active:
        return
    if task.privacy.noise:
        check_library()
    check_delta(task)
    check_divergence(task)
    check_measurements(task)
    task.privacy.sum_multiplier(task.participation.expected(len(task.federation.clients)))
    check_covered(task)


def check_covered(task: Task) -> None:
    """Raise if clients of a private run would send more than their clipped delta.

    A client of a federation checks this too, before it takes part.
    """
    if not task.privacy.active:
        return
    check_statistics(task)
    for stage in task.stages:
        check_rule(stage)
        check_weights(stage.algorithm)
        check_facts(stage.algorithm)
        check_uploads(task, stage)
        check_norm(task, stage.algorithm)


def check_delta(task: Task) -> None:
    """Raise if δ is not below 1 over the number of clients: publishing one client's data would satisfy it."""
    population = len(task.federation.clients)
    if task.privacy.delta >= 1 / population:
        raise RequestError(
            f"privacy.delta = {task.privacy.delta}: need a number below 1/{population}, with {population} "
            "clients, because a run that publishes the data of one random client has this δ. Give a smaller "
            "number, such as 1e-5."
        )


def check_statistics(task: Task) -> None:
    """Raise if statistics of batch norm are averaged over the clients."""
    _, buffers = task.model.init(task.seed)
    if buffers and task.model.statistics == "shared":
        raise RequestError(
            "privacy with training.statistics = 'shared': the network has statistics of batch norm, and the "
            "clients would send them without clipping and noise. Set training.statistics = 'local' or "
            "'frozen', or use a network with group norm or layer norm."
        )


def check_divergence(task: Task) -> None:
    """Raise if one client's upload could stop the run."""
    if task.privacy.noise and task.on_divergence == "stop":
        raise RequestError(
            "privacy with training.on_divergence = 'stop': one client's upload could stop the run, and the "
            "error would name the client. Set training.on_divergence = 'drop': an upload that is not finite "
            "then counts as zero."
        )


def check_measurements(task: Task) -> None:
    """Raise if the table [measure] requests values of single clients' models."""
    measure = task.measure
    for key, on in (
        ("drift", measure.drift), ("spread", measure.spread), ("features_every", measure.features_every),
    ):  # fmt: skip
        if on:
            raise RequestError(
                f"privacy with measure.{key} = {getattr(measure, key)}: it measures the clients' own models, "
                "without noise. Remove the key, or measure in a run without [privacy]."
            )


def check_rule(stage: Stage) -> None:
    """Raise if a rule ends the stage by metrics that have no noise."""
    rule = stage.until
    if rule is not None and not (isinstance(rule, Proposition1) and rule.estimate == "h"):
        raise RequestError(
            f"privacy with a rule that ends the stage of {stage.algorithm.name}: the rule reads metrics "
            "without noise, and all later models depend on them. Name a round, as in 'feddyn -> "
            "fedavg@0.75', or use proposition1 with estimate = 'h', which reads the server's state."
        )


def check_weights(algorithm: Algorithm) -> None:
    """Raise unless all clients have the same weight."""
    if algorithm.weight is not equal:
        raise RequestError(
            f"privacy with {algorithm.name}: its clients have different weights in the mean, so the clip "
            "would not bound the part of one client. Use uniform weights, as in method = "
            "\"fedavg(weights='uniform')\"."
        )


def check_facts(algorithm: Algorithm) -> None:
    """Raise if a correction uses a client's size relative to the others."""
    for c in algorithm.corrections:
        if isinstance(c, DynamicRegularizer) and c.scaling == "data":
            raise RequestError(
                f"privacy with {algorithm.name} and scaling = 'data': a client would learn the mean size of "
                "all clients, without noise. Use scaling = 'uniform'."
            )


def check_uploads(task: Task, stage: Stage) -> None:
    """Raise if a correction's clients send more than the delta; a dry run of one client shows it."""
    algorithm = stage.algorithm
    if any(isinstance(c, LastModels) for c in algorithm.corrections):
        raise RequestError(
            "privacy with evaluation.all = true: the mean of all clients' last models has no noise. Set it "
            "to false."
        )
    model = model_for(algorithm, task.model)
    dry_run = DryRun(algorithm, model, stage.local, task.federation, *task.model.init(task.seed))
    for slot, upload in dry_run.upload["slots"].items():
        if upload:
            raise RequestError(
                f"privacy with {algorithm.name}: besides the delta its clients send {', '.join(upload)} "
                f"(slot {slot!r}), without clipping and noise. Use a method whose clients send the delta "
                "only, such as fedprox, feddyn or fedavgm with uniform weights (docs/privacy.md lists them)."
            )


def check_norm(task: Task, algorithm: Algorithm) -> None:
    """Raise if the clip is adaptive and a correction changes the delta after its norm was compared."""
    if task.privacy.adaptive and any(overrides(c, "send") for c in algorithm.corrections):
        raise RequestError(
            f"privacy.adaptive = true with {algorithm.name}: its clients change the delta before they send "
            "it, and the adaptive clip reads the norm before this change. Set privacy.adaptive = false."
        )
