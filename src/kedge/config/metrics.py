"""The metrics that a run will have, the models that it evaluates, and the fine-tuning of clients."""

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, Tune
from kedge.core.server import Server, initial_server
from kedge.core.tree import Leaves

KINDS = ("accuracy", "loss")


def expected_metrics(task: Task, stage: Stage) -> list[str]:
    """The losses and accuracies that a stage's history will have before the run's last round."""
    algorithm, data = stage.algorithm, task.federation
    models = global_models(algorithm, initial_server(algorithm, task.model, *task.model.init(task.seed)))
    names = [f"{model}.global.{kind}" for model in models for kind in KINDS if data.test]
    if any(len(test) for test in data.local_tests):
        names += [f"{model}.local.{kind}" for model in models for kind in KINDS]
        tuned = ("", ".tuned") if task.tune_every and tune_of(task, algorithm) else ("",)
        suffixes = [tuning + clients for tuning in tuned for clients in ("", ".seen", ".unseen")]
        names += [f"personal.local.{kind}{suffix}" for kind in KINDS for suffix in suffixes]
    return [*names, "train.loss"]


def tune_of(task: Task, algorithm: Algorithm) -> Tune | None:
    """The fine-tuning of clients in this task, which may be the method's own; None for none."""
    tune = algorithm.tune if task.tune == "method" else task.tune
    return tune if isinstance(tune, Tune) else None


def global_models(algorithm: Algorithm, server: Server) -> dict[str, Leaves]:
    """The evaluated models of the server, by name: distributed, average, and the method's views."""
    models = {"distributed": server.shared, "average": server.average}
    for c in algorithm.corrections:
        models |= c.views(server.shared, server.slots[c.name])
    return models
