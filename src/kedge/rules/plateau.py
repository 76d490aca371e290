"""A stage ends where a metric of its history has stopped getting better."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError, nearest
from kedge.core.ranges import checked

History = Sequence[Mapping[str, Any]]
KINDS = ("accuracy", "loss")  # more is better, less is better
SOMETIMES = ("tuned", "seen", "unseen")  # not measured in every evaluation


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
        """The method as it is."""
        return algorithm

    def check(self, names: Sequence[str]) -> None:
        """Raise where the metric is none of these: the rule would never be met."""
        if self.metric not in names:
            raise RequestError(
                f"plateau(metric={self.metric!r}): the history has no such metric."
                f"{nearest(self.metric, names)} It has: {', '.join(names) or 'none'}."
            )

    def __call__(self, history: History) -> bool:
        evaluated = [line for line in history if any(k.endswith(".accuracy") for k in line)]
        if evaluated and self.metric.split(".")[-1] not in SOMETIMES:
            self.check([k for k in evaluated[-1] if any(part in KINDS for part in k.split("."))])
        sign = -1 if "loss" in self.metric.split(".") else 1
        values = [sign * line[self.metric] for line in history if line.get(self.metric) is not None]
        before, last = values[: -self.patience], values[-self.patience :]
        return bool(before) and max(last) <= max(before) + self.by


@checked
def plateau(
    metric: str = "distributed.global.accuracy",
    patience: Annotated[int, Field(ge=1)] = 10,
    by: Annotated[float, Field(ge=0)] = 0.0,
) -> Plateau:
    """A metric has stopped getting better: for `patience` evaluations no gain of more than `by`."""
    return Plateau(metric, patience, by)
