"""The state of a run between two rounds, and the observer that watches it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kedge.config.task import History, Task
from kedge.core.server import Server


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a run after a round."""

    server: Server
    round: int = 0  # number of finished rounds
    stage: int = 0
    stage_round: int = 0  # number of finished rounds of this stage
    seen: frozenset[int] = frozenset()  # clients that have taken part in a round
    history: History = field(default_factory=list)  # the recorder appends a line per round


@dataclass(eq=False)
class Observer:
    """Callbacks of a run: `line` after each history line, `say` for messages, `stop` after each round."""

    line: Callable[[dict[str, Any]], None] = lambda line: None
    say: Callable[[str], None] = lambda message: None
    stop: Callable[[], bool] = lambda: False


class Interrupted(KeyboardInterrupt):
    """The run stopped early because `stop` returned true; its state is saved."""


class Abandoned(KeyboardInterrupt):
    """The process must end at once, although its other thread still trains; checkpoints are complete."""


def is_finished(task: Task, progress: Progress) -> bool:
    """Whether no round is left to train.

    If a stage's rule is never met, the stage uses all remaining rounds, and later stages never start.
    """
    if progress.stage >= len(task.stages):
        return True
    return task.stages[progress.stage].until is not None and progress.round >= task.rounds


def stage_is_over(task: Task, progress: Progress) -> bool:
    """Whether the stage has trained all its rounds, or its rule on its own history is met."""
    stage = task.stages[progress.stage]
    if progress.round >= task.end(progress.stage):
        return True
    if stage.until is None:
        return False
    lines_of_stage = progress.history[len(progress.history) - progress.stage_round :]
    return bool(lines_of_stage) and stage.until(lines_of_stage)


def is_last_round(task: Task, progress: Progress) -> bool:
    """Whether the round that has just finished is the last one of the run."""
    in_last_stage = progress.stage == len(task.stages) - 1
    return progress.round >= task.rounds or (in_last_stage and stage_is_over(task, progress))
