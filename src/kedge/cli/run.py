"""kedge run: one experiment, or the same with several methods and seeds."""

import json
import re
import signal
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from kedge.cli.options import Debug, Json, check_target, console, guarded, notes, say, show
from kedge.core.errors import Diverged, RequestError
from kedge.report.matrix import metric_notes
from kedge.report.plots import accuracy_plot
from kedge.report.runs import PLAN, Run, read_run
from kedge.report.tables import comparison, rendered
from kedge.running.bar import Bar
from kedge.running.config import Experiment, resolve
from kedge.running.document import override, read, settings
from kedge.running.execute import execute, finished, resume
from kedge.running.folder import create_folder
from kedge.running.task import Interrupted, Observer


@guarded
def command(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a shipped experiment by name.")] = "",
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Methods to compare: 'fedavg, feddyn(alpha=0.1), fedbug+feddyn'. One run each.",
        ),
    ] = "",
    model: Annotated[
        str, typer.Option(help="The network: a name with arguments, or your own: my_file.py:factory.")
    ] = "",
    sets: Annotated[
        list[str], typer.Option("--set", help="Any key of the config: --set training.epochs=5.")
    ] = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(help="The random seed.")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, counted up from --seed.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "",
    engine: Annotated[str, typer.Option(help="auto, sequential, stacked or captured (CUDA).")] = "",
    precision: Annotated[str, typer.Option(help="fp64, fp32, tf32 (CUDA) or bf16.")] = "",
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default runs/NAME.")] = None,
    resume_from: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run, or the runs, in this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder if it exists.")] = False,
    target: Annotated[
        float | None, typer.Option(help="Show the rounds to this accuracy, a share: 0.9.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no table.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment: progress, then a table. A run that was stopped or killed resumes exactly."""
    check_target(target)
    plan: Sequence[tuple[Path, Experiment | None]]
    if resume_from:
        if experiment or methods or model or sets or out or seed is not None:
            raise RequestError(
                "--resume takes the run as it was begun: "
                "leave experiment, --methods, --model, --set, --seed and --out out."
            )
        plan, top = planned(resume_from), resume_from
    else:
        if not experiment:
            raise RequestError(
                "name an experiment: kedge run quickstart, or kedge run my.toml (kedge list experiments)."
            )
        chosen = {
            "model": model,
            "engine.device": device,
            "engine.name": engine,
            "engine.precision": precision,
        }
        values = (
            {k: v for k, v in chosen.items() if v} | settings(sets) | ({} if seed is None else {"seed": seed})
        )
        document = override(read(experiment), values)
        top = out or Path("runs") / str(document["name"])
        plan = fresh = variants(document, methods, seeds)
        if [folder for folder, _ in plan] != [Path()]:
            prepare(top, fresh, force)
    failed = []
    runs: list[Run] = []
    with stoppable() as stop:
        for folder, described in plan:
            try:
                one(described, top / folder, bool(resume_from), force, quiet or as_json, stop)
            except Diverged as error:
                if len(plan) == 1:
                    raise
                say(f"error: {error}")
                failed.append(str(folder))
            except OSError as error:
                reason = f"{error.strerror or error} ({error.filename or top / folder})"
                again = f"kedge run --resume {top}"
                raise OSError(
                    f"{reason}. What was saved before is whole; go on with {again} once it is mended."
                ) from error
            except KeyboardInterrupt as error:
                saved = (
                    "its state is saved" if isinstance(error, Interrupted) else "the last checkpoint holds"
                )
                raise KeyboardInterrupt(
                    f"interrupted; {saved}. Go on with: kedge run --resume {top}"
                ) from None
            runs.append(read_run(top / folder))
    tell(runs, top, target, quiet, as_json)
    if failed:
        raise typer.Exit(1)


def variants(document: dict[str, Any], methods: str, seeds: int) -> list[tuple[Path, Experiment]]:
    """The runs asked for: folder below the top, and the experiment; all checked before the first begins."""
    if seeds < 1:
        raise RequestError(f"--seeds {seeds}: need at least 1.")
    # Commas inside parentheses separate arguments, the others methods.
    names: list[str | None] = [m.strip() for m in re.split(r",(?![^(]*\))", methods) if m.strip()] or [None]
    plan = []
    for name in names:
        base = resolve(override(document, {"method": name} if name else {}))
        for number in range(seeds):
            own = resolve(
                override(document, ({"method": name} if name else {}) | {"seed": base.seed + number})
            )
            parts = [re.sub(r"[^\w.+-]+", "-", name).strip("-")] if name and len(names) > 1 else []
            parts += [f"seed{own.seed}"] if seeds > 1 else []
            plan.append((Path(*parts), own))
    twice = {str(p) for p, _ in plan if [q for q, _ in plan].count(p) > 1}
    if twice:
        raise RequestError(f"--methods names the same run twice: {', '.join(sorted(twice))}.")
    return plan


def prepare(top: Path, plan: list[tuple[Path, Experiment]], force: bool) -> None:
    """Make the folder of several runs, with the list of what they are."""
    listed = [{"folder": str(folder), "config": experiment.toml()} for folder, experiment in plan]
    create_folder(top, {PLAN: json.dumps(listed, indent=1)}, force)


def planned(top: Path) -> list[tuple[Path, Experiment | None]]:
    """The runs that a folder holds or should hold."""
    if not top.is_dir():
        raise RequestError(f"--resume {top}: no such folder.")
    if not (top / PLAN).is_file():
        return [(Path(), None)]
    listed = json.loads((top / PLAN).read_text())
    return [(Path(row["folder"]), resolve(tomllib.loads(row["config"]))) for row in listed]


def one(
    experiment: Experiment | None, folder: Path, resumed: bool, force: bool, quiet: bool, stop: list[bool]
) -> None:
    """Run one, or go on with it; a finished one is left as it is."""
    if resumed and finished(folder):
        say(f"{folder} is finished already.")
        return
    goes_on = resumed and (folder / "config.toml").is_file()
    if experiment is None:
        if not goes_on:
            raise RequestError(f"{folder} is not the folder of a run: it has no config.toml.")
        experiment = resolve(read(folder / "config.toml"))
    with Bar(experiment.label, experiment.rounds, False if quiet else None) as bar:
        observer = Observer(line=bar.line, say=bar.say, stop=lambda: bool(stop))
        if goes_on:
            resume(folder, observer)
        else:
            execute(experiment, folder, observer, force)


@contextmanager
def stoppable() -> Iterator[list[bool]]:
    """Ctrl-C once: stop after the round at hand. Twice: at once. The list is not empty once asked."""
    asked: list[bool] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        say("stopping after this round; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def tell(runs: list[Run], top: Path, target: float | None, quiet: bool, as_json: bool) -> None:
    """The result: a table and, for several runs, a plot; or JSON."""
    rows = comparison(runs, target)
    plot = None
    if len(runs) > 1 and plottable():
        plot = top / "accuracy.png"
        accuracy_plot(runs, plot, top.name)
    if as_json:
        show({"folder": str(top), "plot": plot and str(plot), "runs": rows})
    elif not quiet:
        console().print(rendered(rows, target))
        notes(metric_notes(rows))
        console().print(f"\n{top}" + (f"  plot: {plot}" if plot else ""), highlight=False, soft_wrap=True)


def plottable() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None
