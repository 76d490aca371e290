"""Test beds whose answers can be written down, run through the real kernel, engines, server and runner.

A client's objective is a quadratic, f_i(w) = a_i/2 ‖w − b_i‖²: each of its n_i samples is the row (a_i, b_i),
and the quadratic is put in as the algorithm's data term. Nothing of a method is written here a second time.
Bed Q of the specification: a = (1, 2), b = (0, 3), n = (30, 10), w = 1, η = 0.1, two full-batch steps.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction, Step
from kedge.core.losses import weighted_mean
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.server import Server
from kedge.core.tree import Leaves, Tree
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation, federation_from_datasets
from kedge.engines.engine import Engine
from kedge.nn.from_module import from_module
from kedge.running.runner import run

ORACLES: dict[str, Any] = json.loads(files("kedge.audit").joinpath("oracles.json").read_text())


class Numbers(nn.Module):
    """Parameters and nothing else, each a unit: the loss reads them."""

    def __init__(self, start: Mapping[str, Sequence[float]]) -> None:
        super().__init__()
        for name, values in start.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(values, dtype=torch.float64)))
        self.units = tuple((name,) for name in start)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Bed(NamedTuple):
    """A model, who holds what, and the clients' objective."""

    model: Model
    federation: Federation
    loss: Callable[[Step], Tensor]


def quadratic(step: Step) -> Tensor:
    """a/2 ‖w − b‖², where a sample is the row (a, b) and w all leaves in the order of their names."""
    w = torch.cat([step.params[k] for k in sorted(step.params)])
    a, b = step.batch.x[:, 0], step.batch.x[:, 1:]
    return weighted_mean(a / 2 * ((w - b) ** 2).sum(1), step.batch)


def quadratics(
    start: Mapping[str, Sequence[float]], rows: Sequence[Sequence[float]], sizes: Sequence[int]
) -> Bed:
    """Clients with objectives (a_i, b_i) and n_i samples."""
    clients = [
        Dataset(torch.tensor([row] * n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64))
        for row, n in zip(rows, sizes, strict=True)
    ]
    return Bed(
        from_module(Numbers(start)),
        federation_from_datasets(clients, None).to("cpu", torch.float64),
        quadratic,
    )


def bed_q() -> Bed:
    """The specification's scalar bed."""
    q = ORACLES["test_bed_Q"]
    return quadratics({"w": [q["w0"]]}, list(zip(q["a"], q["b"], strict=True)), q["n_samples"])


def local_q(weight_decay: float = 0.0, clip: float | None = None, decay: float = 1.0) -> LocalTraining:
    """How clients of bed Q train: full batches."""
    q = ORACLES["test_bed_Q"]
    return LocalTraining(q["local_steps"], 1000, SGD(q["lr"], weight_decay=weight_decay, decay=decay), clip)


@dataclass(frozen=True)
class Witness(Correction):
    """Remembers a client's model after each of its last steps, and changes nothing."""

    steps: int
    name = "witness"

    def init_client(self, shared: Leaves) -> Tree:
        return {k: torch.stack([v] * self.steps) for k, v in shared.items()}

    def advance(self, step: Step) -> Tree:
        return {k: torch.cat([step.state[k][1:], v[None]]) for k, v in step.params.items()}


@dataclass(frozen=True)
class Given(Participation):
    """The clients of every round, as listed."""

    cohorts: tuple[tuple[int, ...], ...] = ()

    def sample(self, population: int, seed: int, round: int) -> list[int]:
        """The round's clients."""
        return list(self.cohorts[round])


class Moment(NamedTuple):
    """Where a run stands after a round."""

    server: Server
    memories: Mapping[str, Any]  # by client id

    def path(self, client: int) -> Leaves:
        """A client's models after each of its last steps, one row a step."""
        return dict(self.memories[str(client)]["slots"]["witness"])


def moments(
    bed: Bed,
    stages: Sequence[tuple[Algorithm, int]],
    local: LocalTraining,
    cohorts: Sequence[Sequence[int]],
    engine: Callable[[Model, Federation], Engine],
    watch: int = 2,
) -> list[Moment]:
    """A run of (algorithm, rounds) stages with these participants, seen after every round.

    Round t is seen at the end of a run of t rounds: a run is a pure function of its task.
    """
    watched = [
        Stage(replace(one, loss=bed.loss, corrections=(*one.corrections, Witness(watch))), rounds, local)
        for one, rounds in stages
    ]
    given = Given(cohorts=tuple(tuple(cohort) for cohort in cohorts))
    seen = []
    for rounds in range(1, len(cohorts) + 1):
        place = engine(bed.model, bed.federation)
        task = Task(shortened(watched, rounds), bed.model, bed.federation, given)
        seen.append(Moment(run(task, place).server, place.save()))
    return seen


def shortened(stages: Sequence[Stage], rounds: int) -> list[Stage]:
    """The stages' first rounds."""
    kept = []
    for stage in stages:
        if rounds > 0:
            kept.append(replace(stage, rounds=min(stage.rounds, rounds)))
        rounds -= stage.rounds
    return kept
