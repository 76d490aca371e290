"""The arguments of kedge.train as a configuration, with the same keys, defaults and checks as a TOML file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from typing import Any

from kedge.config.document import BY_METHOD
from kedge.config.experiment import Experiment
from kedge.config.schema import parameters
from kedge.config.stages import local_training, stages_of
from kedge.core.algorithm import DEFAULT_LOCAL, Algorithm, Stage, Tune
from kedge.core.errors import RequestError, nearest
from kedge.core.optimizers import Optimizer
from kedge.measure.settings import Measure

Method = Algorithm | str | Sequence[Stage] | None  # the argument `method` of kedge.train

KEYS = {  # argument of kedge.train -> key of a configuration
    "rounds": "rounds",
    "seed": "seed",
    "sampling": "participation.rule",
    "per_round": "participation.per_round",
    "share": "participation.share",
    "epochs": "training.epochs",
    "batch": "training.batch",
    "clip": "training.clip",
    "drop_last": "training.drop_last",
    "augment": "training.augment",
    "statistics": "training.statistics",
    "units": "training.units",
    "on_divergence": "training.on_divergence",
    "evaluate_every": "evaluation.every",
    "all": "evaluation.all",
    "tune_every": "evaluation.tune_every",
    "headline": "evaluation.headline",
    "checkpoint_every": "checkpoint.every",
    "engine": "engine.name",
    "device": "engine.device",
    "precision": "engine.precision",
    "compile": "engine.compile",
}
ABSENT = {  # keys of a configuration that kedge.train does not have
    "name": "The run's folder is the argument out.",
    "protocol": "A protocol also sets the dataset and its partition: use kedge.run.",
    "data": "The data are the argument clients.",
    "partition": "The data are the argument clients, one dataset each.",
    "model": "The model is the argument module.",
}
ROUNDS = 100  # the default of kedge.train


def train_document(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of kedge.train as the document of a configuration."""
    document: dict[str, Any] = {"name": "train"}
    for name, key in KEYS.items():
        value = arguments[name]
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = int(value)  # may be a number of numpy
        table, _, inner = key.rpartition(".")
        (document.setdefault(table, {}) if table else document)[inner] = value
    tune = arguments["tune"]
    tuning = {"tune": tune.what, "tune_epochs": tune.epochs} if isinstance(tune, Tune) else {"tune": tune}
    document["evaluation"] |= tuning
    document["measure"] = asdict(arguments["measure"] or Measure())
    if arguments["privacy"]:
        document["privacy"] = asdict(arguments["privacy"])
    texts = {key: arguments[key] for key in ("method", "optimizer") if isinstance(arguments[key], str)}
    return document | texts


def check_settings(settings: Mapping[str, Any], arguments: Sequence[str], method: Method) -> None:
    """Raise if one of the `settings` is not a key of a configuration, or contradicts `method`."""
    keys = [key for key in parameters(Experiment) if key not in ABSENT]
    for name in settings:
        first = name.partition(".")[0]
        if first in ABSENT:
            raise RequestError(f"{name}: kedge.train has no such key. {ABSENT[first]}")
        if first not in keys:
            raise RequestError(
                f"{name}: kedge.train has no such argument.{nearest(name, [*arguments, *keys])} Allowed: its "
                f"arguments, and the keys of a configuration: {', '.join(keys)}."
            )
        if first in BY_METHOD and not (method is None or isinstance(method, str)):
            raise RequestError(
                f"{name}: only a method string takes this key, and method is a Python object. Use "
                "kedge.fedbug(…), kedge.scheduled(…), or a list of kedge.Stage."
            )


def train_stages(method: Method, experiment: Experiment, optimizer: Optimizer | None) -> tuple[Stage, ...]:
    """The stages of the argument `method`, FedAvg if it is None; `optimizer` replaces the experiment's."""
    if method is None or isinstance(method, str):
        return stages_of(experiment, optimizer)
    local = local_training(experiment, optimizer)
    if isinstance(method, Algorithm):
        return (Stage(method, experiment.rounds, local),)
    stages = [stage for stage in method if isinstance(stage, Stage)] if isinstance(method, Sequence) else []
    if not stages or len(stages) < len(method):
        raise RequestError(
            f"method = {method!r}: need a method string, an Algorithm, or a list of at least one kedge.Stage."
        )
    total = sum(stage.rounds for stage in stages)
    if experiment.rounds not in (total, ROUNDS):
        raise RequestError(
            f"rounds = {experiment.rounds}, but the stages have {total} rounds together. Leave out rounds."
        )
    return tuple(replace(stage, local=local) if stage.local is DEFAULT_LOCAL else stage for stage in stages)
