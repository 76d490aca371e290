"""Plateau: a rule that ends a stage when a metric of its history no longer improves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError, nearest
from kedge.core.ranges import checked

History = Sequence[Mapping[str, Any]]
KINDS = ("accuracy", "loss")
OCCASIONAL = ("tuned", "seen", "unseen")  # not measured in every evaluation


@dataclass(frozen=True)
class Plateau:
    """No value of the last `patience` evaluations is better than the best before them by more than `by`."""

    metric: str = "distributed.global.accuracy"
    patience: int = 10
    by: float = 0.0

    def __post_init__(self) -> None:
        if not any(part in KINDS for part in self.metric.split(".")):
            raise RequestError(
                f"plateau(metric={self.metric!r}): need an accuracy or a loss, "
                "such as distributed.global.accuracy or train.loss."
            )

    def with_measurements(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm unchanged: every history has accuracies and losses."""
        return algorithm

    def check(self, names: Sequence[str]) -> None:
        """Raise if the metric is not in `names`: the stage would never end."""
        if self.metric not in names:
            raise RequestError(
                f"plateau(metric={self.metric!r}): the history has no such metric."
                f"{nearest(self.metric, names)} It has: {', '.join(names) or 'none'}."
            )

    def __call__(self, history: History) -> bool:
        parts = self.metric.split(".")
        evaluated = [line for line in history if any(name.endswith(".accuracy") for name in line)]
        if evaluated and parts[-1] not in OCCASIONAL:
            self.check([name for name in evaluated[-1] if any(part in KINDS for part in name.split("."))])
        sign = -1 if "loss" in parts else 1
        values = [sign * line[self.metric] for line in history if line.get(self.metric) is not None]
        before, last = values[: -self.patience], values[-self.patience :]
        return bool(before) and max(last) <= max(before) + self.by


@checked
def plateau(
    metric: str = "distributed.global.accuracy",
    patience: Annotated[int, Field(ge=1)] = 10,
    by: Annotated[float, Field(ge=0)] = 0.0,
) -> Plateau:
    """A metric no longer improves: its best value rose by at most `by` in the last `patience` evaluations."""
    return Plateau(metric, patience, by)
