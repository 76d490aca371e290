"""kedge.run trains experiments by name; kedge.train trains a user's own module on the user's own data."""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Literal

from torch import nn

from kedge.config.assemble import Objects, assemble
from kedge.config.document import override, read
from kedge.config.experiment import Seed, TuneEvery, resolve
from kedge.config.train_arguments import ROUNDS, check_settings, train_document, train_stages
from kedge.config.user_data import user_federation
from kedge.core.algorithm import Algorithm, Stage, Tune
from kedge.core.errors import RequestError
from kedge.core.model import Statistics
from kedge.core.optimizers import Optimizer
from kedge.core.ranges import Count, checked
from kedge.data.augment import Augment
from kedge.data.dataset import Dataset
from kedge.measure.settings import Measure
from kedge.nn.precision import Precision
from kedge.nn.replacement import private_copy
from kedge.nn.units import Granularity
from kedge.privacy.settings import Privacy
from kedge.running.execute import execute, run_locked
from kedge.running.folders.folder import check_free, create, locked
from kedge.running.folders.marker import Marker
from kedge.running.folders.resumed_code import update_record, use_code
from kedge.running.folders.sources import CodeChoice, code_names, contents
from kedge.running.folders.train_record import call_record, check_same_call, train_identity
from kedge.running.progress_bar import Bar
from kedge.running.result import Result


def run(
    experiment: str | Path, *, out: str | Path | None = None, progress: bool | None = None, **settings: Any
) -> Result:
    """Run a shipped experiment or a TOML file; `settings` replace its keys: run("quickstart", rounds=20).

    Nested keys have a dot: **{"training.epochs": 5}. `method` replaces the experiment's method; the
    experiment's [schedule] still applies unless `method` names a schedule, as in
    method="fedbug(ratio=0.4)+feddyn". Nothing is written to disk unless `out` names a new folder.
    """
    resolved = resolve(override(read(experiment), settings))
    with Bar(resolved.label, resolved.rounds, progress) as bar:
        return execute(resolved, Path(out) if out else None, bar.observer())


@checked(prefix="")
def train(  # noqa: PLR0913  # one parameter for each key of a configuration
    module: nn.Module,
    clients: Sequence[Dataset],
    *,
    test: Dataset | None = None,
    local_tests: Sequence[Dataset] | None = None,
    method: Algorithm | str | Sequence[Stage] | None = None,
    rounds: Count = ROUNDS,
    per_round: Count | None = None,
    share: float | None = None,
    sampling: Literal["exact", "bernoulli", "poisson"] = "exact",
    epochs: Count = 1,
    batch: Count = 50,
    optimizer: Optimizer | str | None = None,
    clip: float | None = None,
    drop_last: bool = False,
    augment: Augment = "none",
    statistics: Statistics = "shared",
    units: Granularity = "listed",
    seed: Seed = 0,
    evaluate_every: Count = 1,
    tune: Tune | Literal["method", "off"] = "method",
    tune_every: TuneEvery = 0,
    all: bool = False,
    headline: Literal["all", "seen"] = "all",
    measure: Measure | None = None,
    privacy: Privacy | None = None,
    on_divergence: Literal["stop", "drop"] = "stop",
    precision: Precision = "fp32",
    engine: Literal["auto", "sequential", "stacked", "captured", "ray"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    compile: Literal["auto", "on", "off"] = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    code: CodeChoice = "same",
    checkpoint_every: Count = 10,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Train a module on the clients' own data, from the module's weights. The module is not changed.

    `method` is a method string, as in "fedbug+feddyn -> fedavg@0.75", an Algorithm, or a list of Stage. A
    Stage without `local` trains with `epochs`, `batch`, `optimizer`, `clip` and `drop_last` of this call.
    Parameters with requires_grad=False are neither trained nor sent.

    Models are evaluated on the common test set `test`, and each client's model on its dataset in
    `local_tests`, every `evaluate_every` rounds. `tune` fine-tunes a copy of each client's model before its
    local test, every `tune_every` rounds (0: after the last round). all=True also evaluates the mean of all
    clients' last models. headline="seen" leaves clients that never took part out of the personal means.
    `measure` adds measurements to the history: kedge.Measure(drift=True). `privacy` bounds and noises what
    the server learns of a client: kedge.Privacy(clip=1.0, noise=1.0) (docs/privacy.md).

    With `out`, the run is saved to this folder while it trains. The same call with resume=True resumes it.
    Data, module, method and settings must be the same; `rounds` and a few others may differ (docs/runs.md).
    If `method` names a file, "my_file.py:method", its code must be unchanged, unless code="changed" (execute
    the changed file) or code="stored" (execute the copy in the run's folder).

    `settings` are further keys of a configuration: schedule="fedbug", or **{"engine.chunk": 5}. The tables
    data, partition and model are not allowed: `clients` and `module` replace them.
    """
    arguments = {name: value for name, value in locals().items() if name != "settings"}
    document = train_document(arguments)
    check_settings(settings, [*arguments], method)
    folder = Path(out) if out else None
    old = folder_to_resume(folder, resume)
    with use_code(old, code) if old else nullcontext():
        experiment = resolve(override(document, settings))
        names = code_names(experiment)
        stages = train_stages(method, experiment, None if isinstance(optimizer, str) else optimizer)
    network = private_copy(module).cpu()
    federation = user_federation(clients, test, local_tests, network, experiment)
    task = assemble(experiment, Objects(federation, network, stages))
    identity = train_identity(task, stages, method, experiment, module) if folder else {}
    with ExitStack() as locks:
        if old:
            locks.enter_context(locked(old))
            check_same_call(old, identity, task, module)
            locks.enter_context(use_code(old, code))
            update_record(old, code, names)
        elif folder:
            files: dict[str, str | bytes] = {"config.toml": call_record(task, module), **contents(names)}
            create(folder, files, Marker("run", identity), locks=locks)
        label = "->".join(stage.algorithm.name for stage in stages)
        bar = locks.enter_context(Bar(label, task.rounds, progress))
        every = experiment.checkpoint.every
        return run_locked(task, experiment.engine, "train", every, folder, bar.observer())


def folder_to_resume(folder: Path | None, resume: bool) -> Path | None:
    """The folder of the run to resume, or None for a new run; raise if a new run may not use `folder`."""
    if resume and not folder:
        raise RequestError("resume=True needs out: the folder of the run to resume.")
    if folder and not resume:
        check_free(folder, False)
    return folder if folder and resume and folder.exists() else None
