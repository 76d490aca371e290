"""A run that is stopped and resumed ends with the same bits as an uninterrupted run.

A checkpoint contains the states that kedge passes to a method, and nothing else. A method that keeps state on
itself or in its module fails this check, because each of the three runs gets its own copy of the algorithm.
"""

import json
from copy import deepcopy
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kedge.audit.finding import Finding, max_difference, no_violations
from kedge.audit.problems import IMAGE, convolutional, federation
from kedge.audit.training import ENGINES, run_state
from kedge.config.task import History, Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.tree import Leaves, flatten
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

ROUNDS, STOP = 4, 2
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=0.5)
PARTICIPATION = Participation("bernoulli", share=0.6)
MODELS = ("model.safetensors", "average.safetensors")
EngineClass = type[Sequential] | type[Stacked]


class Ending(NamedTuple):
    """The state at the end of a run, and the files of its folder."""

    tensors: Leaves  # server and clients
    models: dict[str, bytes]  # by file name
    history: History  # of history.jsonl, without times


def resumed_run_is_equal(algorithm: Algorithm) -> Finding:
    """A run of four rounds, stopped after two and resumed: same state, files and history, on both engines.

    Clients have different sizes, some take part in a round, and the statistics of batch norm are local.
    """
    compared, wrong, error = 0, [], 0.0
    for name, engine in ENGINES.items():
        uninterrupted, resumed = run_both(algorithm, engine)
        different, largest = differences(uninterrupted, resumed)
        wrong += [f"{name}: {difference}" for difference in different]
        error = max(error, largest)
        compared += len({*uninterrupted.tensors, *resumed.tensors})
    scope = f"{ROUNDS} rounds, stopped after {STOP}: {compared} tensors and the history, bit for bit"
    finding = no_violations(scope, wrong, "different")._replace(error=error)
    hint = "" if finding.passed else ". Does it keep state on itself or in its module, outside its states?"
    return finding._replace(detail=finding.detail + hint)


def differences(uninterrupted: Ending, resumed: Ending) -> tuple[list[str], float]:
    """Tensors, history lines and files in which two runs differ, and the largest difference of tensors."""
    found, error = [], 0.0
    for k in sorted({*uninterrupted.tensors, *resumed.tensors}, reverse=True):  # the server's first
        left, right = uninterrupted.tensors.get(k), resumed.tensors.get(k)
        if left is None or right is None:
            found.append(f"{k} is in one run only")
        elif left.numpy().tobytes() != right.numpy().tobytes():
            found.append(k)
            error = max(error, max_difference(left, right))
    lines = zip(uninterrupted.history, resumed.history, strict=True)
    found += [f"history of round {line['round']}" for line, resumed_line in lines if line != resumed_line]
    found += [file for file in MODELS if uninterrupted.models[file] != resumed.models[file]]
    return found, error


def run_both(algorithm: Algorithm, engine: EngineClass) -> tuple[Ending, Ending]:
    """Run once without interruption, and once with a stop in the middle; return both endings."""
    copies = [deepcopy(algorithm) for _ in range(3)]
    with TemporaryDirectory(prefix="kedge-audit-") as parent:
        folder, stopped = Path(parent, "uninterrupted"), Path(parent, "stopped")
        folder.mkdir()
        stopped.mkdir()
        uninterrupted = run_in(folder, copies[0], engine, Observer())
        try:
            run_in(stopped, copies[1], engine, stop_after(STOP))
        except Interrupted:
            if (stopped / MODELS[0]).exists():
                raise RuntimeError("a run that was stopped wrote its final model") from None
            return uninterrupted, run_in(stopped, copies[2], engine, Observer())
    raise RuntimeError("the run continued although its observer stopped it")


def run_in(folder: Path, algorithm: Algorithm, engine: EngineClass, observer: Observer) -> Ending:
    """Run the task in `folder`, or resume the run that is in it."""
    model, data = convolutional(algorithm, statistics="local"), federation(shape=IMAGE)
    trainer = engine(model, data)
    task = Task((Stage(algorithm, ROUNDS, LOCAL),), model, data, PARTICIPATION)
    progress = run(task, trainer, folder, observer=observer)
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return Ending(
        flatten(run_state(progress.server, trainer)),
        {file: (folder / file).read_bytes() for file in MODELS},
        [{k: v for k, v in line.items() if k != "time"} for line in lines],
    )


def stop_after(rounds: int) -> Observer:
    """An observer that stops the run after `rounds` rounds."""
    done = count(1)
    return Observer(stop=lambda: next(done) == rounds)
