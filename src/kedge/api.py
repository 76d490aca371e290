"""The Python calls: kedge.run for experiments, kedge.train for a user's own module and arrays."""

import tomllib
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch
from torch import nn

from kedge.algorithms import fedavg
from kedge.config.assemble import (
    adapted,
    algorithm_of,
    check_augment,
    check_model,
    check_precision,
    check_schedules,
    check_tuning,
    device_of,
)
from kedge.config.diagnostics import check_measures, watched
from kedge.config.document import method_tables, override, read
from kedge.config.experiment import EngineChoice, factory_table, resolve
from kedge.config.forward_check import preserve_generators, with_checked_forward
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.errors import DataError, RequestError
from kedge.core.frozen import place_frozen
from kedge.core.model import Batch, Statistics
from kedge.core.optimizers import SGD, Optimizer
from kedge.core.sampling import Participation
from kedge.data.augment import Augment
from kedge.data.dataset import Dataset
from kedge.data.federation import federation_from_datasets
from kedge.measure.last_models import LastModels
from kedge.measure.settings import Measure
from kedge.nn.from_module import from_module, seeded
from kedge.nn.naming import FORWARD_ERRORS, error_text
from kedge.nn.precision import DTYPES, Precision, in_precision
from kedge.nn.replacement import private_copy
from kedge.nn.units import Granularity
from kedge.running.bar import Bar
from kedge.running.execute import execute, run_locked
from kedge.running.folders.folder import check_free, create, locked
from kedge.running.folders.identity import (
    Identity,
    call_identity,
    check_identity,
    differences,
    raise_differences,
)
from kedge.running.folders.marker import Marker, read_marker
from kedge.running.folders.resumed_code import update_record, use_code
from kedge.running.folders.sources import CodeChoice, colon_names, contents
from kedge.running.result import Result

ANOTHER_CALL = (
    "Call kedge.train with the arguments of the first call; only rounds, engine, device, compile, "
    "checkpoint_every and progress may differ. For a new run, choose another folder with out."
)


def run(
    experiment: str | Path, *, out: str | Path | None = None, progress: bool | None = None, **settings: Any
) -> Result:
    """Run a shipped experiment or a TOML file, with any of its keys set: run("quickstart", rounds=20).

    Nested keys are written {"training.epochs": 5}. `method` replaces the experiment's method; its
    [schedule] still applies unless `method` names one, as in method="fedbug(ratio=0.4)+feddyn". Nothing is
    written to disk unless `out` names a new folder.
    """
    resolved = resolve(override(read(experiment), settings))
    with Bar(resolved.label, resolved.rounds, progress) as bar:
        return execute(resolved, Path(out) if out else None, bar.observer())


def train(
    module: nn.Module,
    clients: Sequence[Dataset],
    *,
    test: Dataset | None = None,
    local_tests: Sequence[Dataset] | None = None,
    method: Algorithm | str | None = None,
    rounds: int = 100,
    per_round: int | None = None,
    share: float | None = None,
    sampling: Literal["exact", "bernoulli"] = "exact",
    epochs: int = 1,
    batch: int = 50,
    optimizer: Optimizer | None = None,
    clip: float | None = None,
    drop_last: bool = False,
    augment: Augment = "none",
    statistics: Statistics = "shared",
    units: Granularity = "listed",
    seed: int = 0,
    evaluate_every: int = 1,
    tune: Tune | Literal["method", "off"] = "method",
    tune_every: int = 0,
    all: bool = False,
    headline: Literal["all", "seen"] = "all",
    measure: Measure | None = None,
    on_divergence: Literal["stop", "drop"] = "stop",
    precision: Precision = "fp32",
    engine: Literal["auto", "sequential", "stacked", "captured"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    compile: Literal["auto", "on", "off"] = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    code: CodeChoice = "same",
    checkpoint_every: int = 10,
    progress: bool | None = None,
) -> Result:
    """Train a module on clients' own data. The module is left untouched; training starts from its weights.

    Parameters with requires_grad=False are neither trained nor sent.
    With `out`, the run is saved to that folder while it trains; the same call with resume=True resumes it. A
    resumed call must have the same data, module, method and settings; `rounds` and a few others may differ
    (docs/runs.md). If `method` names a file, "my_file.py:method", its code must be unchanged; code="changed"
    executes the changed file, code="stored" the copy in the run's folder.
    `tune` fine-tunes a copy of each client's model before it is measured on its local test (every tune_every
    rounds, 0: after the last one), all=True measures the mean of all clients' last models as well, and
    headline="seen" leaves clients that never took part out of the personal means. `measure` asks for more:
    kedge.Measure(drift=True) puts how far clients pull apart into every line of the history.
    """
    rounds, epochs, batch = whole("rounds", rounds), whole("epochs", epochs), whole("batch", batch)
    per_round = None if per_round is None else whole("per_round", per_round)
    evaluate_every, tune_every = whole("evaluate_every", evaluate_every), whole("tune_every", tune_every, 0)
    checkpoint_every, seed = whole("checkpoint_every", checkpoint_every), whole("seed", seed, 0, 2**32 - 1)
    folder = Path(out) if out else None
    if resume and not folder:
        raise RequestError("resume=True needs out: the folder of the run to resume.")
    if folder and not resume:
        check_free(folder, False)
    old = folder if folder and resume and folder.exists() else None  # the run to resume
    with use_code(old, code) if old else nullcontext():
        # The names of the user's own code.
        names = [*colon_names(method_tables(method))] if isinstance(method, str) else []
        algorithm = method_of(method)
    wanted = EngineChoice(engine, device, precision, compile)
    own = private_copy(module).cpu()
    federation = federation_from_datasets(clients, test, local_tests)
    outputs = output_count(own, federation.prepare(federation.pool.x[:1]).cpu())
    highest = int(max([int(federation.pool.y.max()), *([int(test.y.max())] if test else [])]))
    if highest >= outputs:
        raise DataError(
            f"label {highest} is outside the module's {outputs} outputs: labels run from 0 to {outputs - 1}."
        )
    check_precision(precision, torch.device(device_of(wanted)))
    federation = replace(federation, classes=outputs).to(device_of(wanted), DTYPES[precision])
    federation = replace(federation, augment=augment)
    check_augment(federation)
    rebuilt = seeded(lambda: algorithm.rebuild(own), seed)
    local = LocalTraining(epochs, batch, optimizer or SGD(), clip, drop_last)
    measured = replace(algorithm, corrections=(*algorithm.corrections, LastModels())) if all else algorithm
    stages = (Stage(measured, rounds, local),)
    plain = from_module(rebuilt, statistics=statistics, units=units)
    model = in_precision(adapted(plain, stages), precision)
    check_model(model, federation)
    model = with_checked_forward(model, federation)
    participation = Participation(sampling, per_round, share)
    participation.count(len(clients))
    check_schedules(stages, model)
    model = place_frozen(model, federation.dtype, federation.pool.x.device)
    wanted_measures = measure or Measure()
    task = Task(
        watched(stages, model, wanted_measures),
        model,
        federation,
        participation,
        seed,
        evaluate_every,
        on_divergence,
        tune,
        tune_every,
        headline,
        wanted_measures,
        precision,
    )
    check_measures(task)
    check_tuning(task)
    # The user's own code is compared by its files.
    known = method if isinstance(method, str) and names else algorithm
    identity = call_identity(task, known, module, units=units, all=all) if folder else {}
    with ExitStack() as locks:
        if old:
            locks.enter_context(locked(old))
            check_same_call(old, identity, task, module)
            locks.enter_context(use_code(old, code))
            update_record(old, code, names)
        elif folder:
            files: dict[str, str | bytes] = {"config.toml": described(task, module), **contents(names)}
            create(folder, files, Marker("run", identity), locks=locks)
        bar = locks.enter_context(Bar(algorithm.name, rounds, progress))
        return run_locked(task, wanted, "train", checkpoint_every, folder, bar.observer())


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """The value of the argument `name` as an int; raise if it is no integer or out of bounds."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is not None and least <= number and (most is None or number <= most):
        return number
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise RequestError(f"{name} = {value!r}: need a whole number {bounds}.")


def method_of(method: Algorithm | str | None) -> Algorithm:
    """The algorithm of the argument `method`; FedAvg if it is None."""
    return fedavg() if method is None else named_algorithm(method) if isinstance(method, str) else method


def named_algorithm(text: str) -> Algorithm:
    """The algorithm of an expression such as 'fedbug(ratio=0.2)+feddyn(alpha=0.1)'."""
    tables = {key: factory_table(key, table) for key, table in method_tables(text).items()}
    return algorithm_of(tables["method"], tables["schedule"])


def output_count(module: nn.Module, x: torch.Tensor) -> int:
    """How many classes the module tells apart."""
    model = from_module(module, units="layer")  # every module has these
    params, buffers = model.init(0)
    x = x.to(next(iter(params.values())).dtype)
    batch = Batch(
        x, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=x.dtype), torch.zeros(2, dtype=torch.int64)
    )
    try:
        with torch.no_grad(), preserve_generators():
            logits = model.apply(params, buffers, batch, False)[0].logits
    except FORWARD_ERRORS as error:
        raise RequestError(
            f"the module cannot take samples of shape {tuple(x.shape[1:])}: {error_text(error)}"
        ) from error
    if logits.dim() != 2:
        raise RequestError(f"the module returns shape {tuple(logits.shape)}: need logits [batch, classes].")
    return logits.shape[1]


def check_same_call(folder: Path, identity: Identity, task: Task, module: nn.Module) -> None:
    """Raise if the run in a folder was started by another call, or not by kedge.train."""
    config = folder / "config.toml"
    if not config.is_file():
        raise RequestError(
            f"out = {str(folder)!r} is not the folder of a run: it has no {config.name}. Leave resume out to "
            "start a run in a new folder."
        )
    if read_marker(folder) is None:  # version 0.1 saved only these keys
        first = tomllib.loads(config.read_text())
        now = tomllib.loads(described(task, module))
        kept = ("call", "module", "seed", "clients")
        found = differences({k: first.get(k) for k in kept}, {k: now[k] for k in kept})
        raise_differences(folder, found, ANOTHER_CALL)
    check_identity(folder, identity, ANOTHER_CALL)


def described(task: Task, module: nn.Module) -> str:
    """A record of a call of kedge.train; such a run is resumed by the same call, not from this file."""
    stage = task.stages[0]
    return tomli_w.dumps(
        {
            "name": "train",
            "call": "kedge.train",
            "module": type(module).__name__,
            "rounds": stage.rounds,
            "seed": task.seed,
            "clients": len(task.federation.clients),
            "method": repr(stage.algorithm),
            "local": repr(stage.local),
            "participation": repr(task.participation),
        }
    )
