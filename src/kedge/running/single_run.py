"""Train one run by itself, in the main thread."""

from contextlib import ExitStack
from typing import Any

from kedge.running.execute import run_locked
from kedge.running.preparation import PreparedRun, prepare_run
from kedge.running.progress import Interrupted, Observer
from kedge.running.progress_bar import Bar
from kedge.running.requests import Controls, Outcome, RunRequest, failure


def run_single(request: RunRequest, controls: Controls) -> Outcome:
    """Prepare a run and train it; raise Interrupted if `controls.stop` returns true before it starts."""
    if controls.stop():
        raise Interrupted
    with ExitStack() as locks:
        try:
            prepared = prepare_run(request, (), locks)
        except Exception as error:  # reported with this run; other runs still train
            return failure(request, error)
        return train_alone(prepared, controls)


def train_alone(prepared: PreparedRun, controls: Controls) -> Outcome:
    """Train a prepared run on an engine of its own."""
    folder, experiment, *_ = prepared.request
    if controls.stop():
        raise Interrupted
    with Bar(experiment.label, experiment.rounds, controls.shown) as bar:

        def show(line: dict[str, Any]) -> None:
            bar.line(line)
            controls.line(folder, line)

        observer = Observer(show, controls.say_beside(bar.say), controls.stop)
        every = experiment.checkpoint.every
        try:
            run_locked(prepared.task, experiment.engine, experiment.name, every, folder, observer)
        except Exception as error:  # reported with this run; other runs still train
            return failure(prepared.request, error)
    return Outcome(prepared.request)
