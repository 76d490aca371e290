"""Runs whose state is recorded after every round, and clients' models after every step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from kedge.audit.bed import Bed
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction, Step
from kedge.core.model import Model
from kedge.core.sampling import Participation
from kedge.core.server import Server
from kedge.core.tree import Leaves, Tree
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.running.runner import run

RECORDED = "recorded"  # the slot of the recorded models in a client's memory


@dataclass(frozen=True)
class StepRecorder(Correction):
    """Keeps a client's models after its last `steps` steps in its memory, and changes nothing."""

    steps: int
    name = RECORDED

    def init_client(self, shared: Leaves) -> Tree:
        return {k: torch.stack([v] * self.steps) for k, v in shared.items()}

    def advance(self, step: Step) -> Tree:
        return {k: torch.cat([step.state[k][1:], v[None]]) for k, v in step.params.items()}


@dataclass(frozen=True)
class FixedCohorts(Participation):
    """The participants of every round as a list."""

    cohorts: tuple[tuple[int, ...], ...] = ()

    def sample(self, population: int, seed: int, round: int) -> list[int]:
        """The participants of `round`."""
        return list(self.cohorts[round])


class RoundState(NamedTuple):
    """The state of a run after a round."""

    server: Server
    memories: Mapping[str, Any]  # by client id

    def models(self, client: int) -> Leaves:
        """The client's models after each of its last steps, one row for each step."""
        return dict(self.memories[str(client)]["slots"][RECORDED])


def last_model(memory: Mapping[str, Any]) -> Leaves:
    """A client's model after its last step, from the client's memory."""
    return {k: v[-1] for k, v in memory["slots"][RECORDED].items()}


def record_rounds(
    bed: Bed,
    stages: Sequence[tuple[Algorithm, int]],
    local: LocalTraining,
    cohorts: Sequence[Sequence[int]],
    engine: Callable[[Model, Federation], Engine],
    steps: int = 2,
) -> list[RoundState]:
    """Run (algorithm, rounds) stages, and return the state after every round.

    Each client's memory contains its models after the last `steps` steps.

    The state after t rounds is the final state of a run of t rounds: a run is a pure function of its task.
    """
    recorded = [
        Stage(
            replace(algorithm, loss=bed.loss, corrections=(*algorithm.corrections, StepRecorder(steps))),
            rounds,
            local,
        )
        for algorithm, rounds in stages
    ]
    participation = FixedCohorts(cohorts=tuple(tuple(cohort) for cohort in cohorts))
    states = []
    for rounds in range(1, len(cohorts) + 1):
        trainer = engine(bed.model, bed.federation)
        task = Task(first_rounds(recorded, rounds), bed.model, bed.federation, participation)
        states.append(RoundState(run(task, trainer).server, trainer.save()))
    return states


def first_rounds(stages: Sequence[Stage], rounds: int) -> list[Stage]:
    """The stages of the first `rounds` rounds."""
    kept = []
    for stage in stages:
        if rounds > 0:
            kept.append(replace(stage, rounds=min(stage.rounds, rounds)))
        rounds -= stage.rounds
    return kept
