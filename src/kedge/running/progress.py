"""The state of a run between two rounds, and its observer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kedge.config.task import History
from kedge.core.server import Server


@dataclass(eq=False)
class Observer:
    """Who watches: a line after every round, messages, and whether to stop after the round at hand."""

    line: Callable[[dict[str, Any]], None] = lambda line: None
    say: Callable[[str], None] = lambda message: None
    stop: Callable[[], bool] = lambda: False


@dataclass(eq=False)
class Progress:
    """Where a run stands."""

    server: Server
    round: int = 0  # rounds done
    stage: int = 0
    stage_round: int = 0
    seen: set[int] = field(default_factory=set)  # clients that took part in a round
    history: History = field(default_factory=list)


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and its state is saved."""
