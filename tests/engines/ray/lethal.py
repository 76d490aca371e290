"""A method whose clients end their process, a few times, in the middle of a round."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from kedge.algorithms import scaffold
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction, Step

KILLED = 9


@dataclass(frozen=True)
class Lethal(Correction):
    """Ends the process in its loss: one process for each entry of `rounds`, in the round that it names.

    In the order of the entries: (2, 0) ends a process in round 2, then a process that repeats round 0.
    """

    folder: str
    rounds: tuple[int, ...]
    name = "lethal"

    def loss(self, step: Step) -> Tensor:
        """No term; the process may end."""
        number = len(list(Path(self.folder).glob("death *")))
        due = number < len(self.rounds) and self.rounds[number] == int(step.round)
        if due and is_first(Path(self.folder) / f"death {number}"):
            os.kill(os.getpid(), KILLED)
        return step.params[next(iter(step.params))].sum() * 0


def is_first(folder: Path) -> bool:
    """Whether no other process has made this folder."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def lethal(folder: Path, rounds: tuple[int, ...]) -> Algorithm:
    """SCAFFOLD whose clients end their process in each of `rounds`, once."""
    base = scaffold()
    return replace(base, corrections=(*base.corrections, Lethal(str(folder), rounds)))
