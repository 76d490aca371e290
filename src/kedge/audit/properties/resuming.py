"""A run that was stopped and resumed ends as the run that went through, to the last bit.

A checkpoint contains the states that kedge passes to a method, and nothing else. A method that keeps numbers
on itself or in its module fails here, because each of the three runs gets its own copy of the algorithm.
"""

import json
from copy import deepcopy
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kedge.audit.finding import Finding, apart
from kedge.audit.problems import ENGINES, IMAGE, convolutional, federation, run_state
from kedge.config.task import History, Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.tree import Leaves, flatten
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

ROUNDS, STOP = 4, 2
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=0.5)
PARTICIPATION = Participation("bernoulli", share=0.6)
MODELS = ("model.safetensors", "average.safetensors")
Kind = type[Sequential] | type[Stacked]


class Ending(NamedTuple):
    """The end of a run: its state, and its folder's files."""

    tensors: Leaves  # server and clients
    models: dict[str, bytes]  # by file name
    history: History  # of history.jsonl, without times


def resumes(algorithm: Algorithm) -> Finding:
    """Stopped after two of four rounds and resumed: state, files and history bit for bit, on both engines.

    Clients are ragged, some take part, batch norm's statistics stay with them.
    """
    compared, wrong, error = 0, [], 0.0
    for name, engine in ENGINES.items():
        whole, broken = through_and_resumed(algorithm, engine)
        names = sorted({*whole.tensors, *broken.tensors}, reverse=True)  # the server's first
        for k in names:
            left, right = whole.tensors.get(k), broken.tensors.get(k)
            if left is None or right is None:
                wrong.append(f"{name}: {k} is in one run only")
            elif left.numpy().tobytes() != right.numpy().tobytes():
                wrong.append(f"{name}: {k}")
                error = max(error, apart(left, right))
        lines = zip(whole.history, broken.history, strict=True)
        wrong += [f"{name}: history of round {line['round']}" for line, again in lines if line != again]
        wrong += [f"{name}: {file}" for file in MODELS if whole.models[file] != broken.models[file]]
        compared += len(names)
    detail = f"{ROUNDS} rounds, stopped after {STOP}: {compared} tensors and the history, bit for bit"
    if not wrong:
        return Finding(True, 0.0, f"{detail}; different: none")
    more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    why = "Does it keep something outside its states, on itself or in its module?"
    return Finding(False, error, f"{detail}; different: {', '.join(wrong[:4])}{more}. {why}")


def through_and_resumed(algorithm: Algorithm, engine: Kind) -> tuple[Ending, Ending]:
    """The ends of a run that goes through, and of one that is stopped and resumed."""
    copies = [deepcopy(algorithm) for _ in range(3)]
    with TemporaryDirectory(prefix="kedge-audit-") as place:
        whole, broken = Path(place, "whole"), Path(place, "broken")
        whole.mkdir()
        broken.mkdir()
        through = run_in(whole, copies[0], engine, Observer())
        try:
            run_in(broken, copies[1], engine, stop_after(STOP))
        except Interrupted:
            if (broken / MODELS[0]).exists():
                raise RuntimeError("a run that was stopped wrote its final model") from None
            return through, run_in(broken, copies[2], engine, Observer())
    raise RuntimeError("the run continued although its observer stopped it")


def run_in(folder: Path, algorithm: Algorithm, engine: Kind, observer: Observer) -> Ending:
    """Run the task in this folder, or continue it there."""
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
    """An observer that stops the run at the end of this round."""
    done = count(1)
    return Observer(stop=lambda: next(done) == rounds)
