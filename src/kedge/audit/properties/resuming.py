"""A run that was stopped and taken up again, against the run that went through.

Whatever a method keeps outside the states it is handed (on itself, in its module) is not in a checkpoint: the
three runs are given copies of the algorithm as it was before the audit.
"""

from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kedge.audit.bed import ENGINES
from kedge.audit.finding import Finding, apart
from kedge.audit.network import RAGGED, federation, normalized
from kedge.config.task import History, Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.tree import Leaves, flatten
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

ROUNDS, STOP = 4, 2
LOCAL = LocalTraining(2, 5, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
SOME = Participation("bernoulli", share=0.6)


class Left(NamedTuple):
    """What a run leaves behind."""

    tensors: Leaves  # server and clients
    history: History  # without the times


def resumes(algorithm: Algorithm) -> Finding:
    """Stopped after two of four rounds and taken up: server, memories and history bit for bit, both engines.

    Clients are ragged, some take part, batch norm's statistics stay with them.
    """
    compared, wrong, error = 0, [], 0.0
    for name, engine in ENGINES.items():
        whole, broken = both_ways(algorithm, engine)
        names = sorted({*whole.tensors, *broken.tensors}, reverse=True)  # the server's first
        for k in names:
            left, right = whole.tensors.get(k), broken.tensors.get(k)
            if left is None or right is None:
                wrong.append(f"{name}: {k} is there in one run only")
            elif left.numpy().tobytes() != right.numpy().tobytes():
                wrong.append(f"{name}: {k}")
                error = max(error, apart(left, right))
        lines = zip(whole.history, broken.history, strict=True)
        wrong += [f"{name}: history of round {line['round']}" for line, again in lines if line != again]
        compared += len(names)
    detail = f"{ROUNDS} rounds, stopped after {STOP}: {compared} tensors and the history, bit for bit"
    if not wrong:
        return Finding(True, 0.0, f"{detail}; different: none")
    more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    why = "Does it keep something outside its states, on itself or in its module?"
    return Finding(False, error, f"{detail}; different: {', '.join(wrong[:4])}{more}. {why}")


def both_ways(algorithm: Algorithm, engine: Callable[[Model, Federation], Engine]) -> tuple[Left, Left]:
    """The run that goes through, and the one that is stopped and taken up."""
    copies = [deepcopy(algorithm) for _ in range(3)]
    with TemporaryDirectory(prefix="kedge-audit-") as place:
        whole, broken = Path(place, "whole"), Path(place, "broken")
        whole.mkdir()
        broken.mkdir()
        through = left_by(copies[0], engine, whole, Observer())
        try:
            left_by(copies[1], engine, broken, stop_after(STOP))
        except Interrupted:
            return through, left_by(copies[2], engine, broken, Observer())
    raise RuntimeError("the run went on when it was asked to stop")


def left_by(
    algorithm: Algorithm, engine: Callable[[Model, Federation], Engine], folder: Path, observer: Observer
) -> Left:
    """Run in this folder."""
    model, data = normalized(algorithm, "local"), federation(RAGGED, (1, 5, 5))
    place = engine(model, data)
    task = Task((Stage(algorithm, ROUNDS, LOCAL),), model, data, SOME)
    progress = run(task, place, folder, observer=observer)
    state: dict[str, Any] = {"server": progress.server._asdict(), "clients": place.save()}
    history = [{k: v for k, v in line.items() if k != "time"} for line in progress.history]
    return Left(flatten(state), history)


def stop_after(rounds: int) -> Observer:
    """An observer that asks to stop at the end of this round."""
    done = count(1)
    return Observer(stop=lambda: next(done) == rounds)
