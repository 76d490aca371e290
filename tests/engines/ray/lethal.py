"""A method whose clients end their process, once, in the middle of a round."""

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
    """Ends the process in its loss if `file` has a line left; every death removes one."""

    name = "lethal"
    file: str = ""

    def loss(self, step: Step) -> Tensor:
        """No term; the process may end."""
        path = Path(self.file)
        left = path.read_text().splitlines()
        if left and int(step.round) == int(left[0]):
            path.write_text("\n".join(left[1:]))
            os.kill(os.getpid(), KILLED)
        return step.params[next(iter(step.params))].sum() * 0


def lethal(file: Path, rounds: list[int]) -> Algorithm:
    """SCAFFOLD whose clients end their process in each of `rounds`, once."""
    file.write_text("\n".join(map(str, rounds)))
    base = scaffold()
    return replace(base, corrections=(*base.corrections, Lethal(file=str(file))))
