"""Selections: functions of a model that return names of leaves, such as all leaves, the body or the head."""

from collections.abc import Callable
from dataclasses import dataclass

from kedge.core.errors import RequestError
from kedge.core.frozen import frozen_note
from kedge.core.model import Model

Selection = Callable[[Model], frozenset[str]]


def everything(model: Model) -> frozenset[str]:
    """The names of all leaves."""
    return frozenset(k for unit in model.units for k in unit) | frozenset(model.extra)


def body(model: Model) -> frozenset[str]:
    """The names of the leaves of all units but the last."""
    return frozenset(k for unit in model.units[:-1] for k in unit)


def head(model: Model) -> frozenset[str]:
    """The names of the leaves of the last unit."""
    return frozenset(model.units[-1])


@dataclass(frozen=True)
class Last:
    """A selection: the leaves of the last `count` units."""

    count: int

    def __call__(self, model: Model) -> frozenset[str]:
        check_count(self.count, model)
        return frozenset(k for unit in model.units[-self.count :] for k in unit)


@dataclass(frozen=True)
class AllButLast:
    """A selection: the leaves of all units but the last `count`."""

    count: int

    def __call__(self, model: Model) -> frozenset[str]:
        check_count(self.count, model)
        return frozenset(k for unit in model.units[: -self.count] for k in unit)


def check_count(count: int, model: Model) -> None:
    """Raise a RequestError unless the model has more than `count` units, and `count` is at least 1."""
    if not 0 < count < len(model.units):
        advice = (
            f"give a number from 1 to {len(model.units) - 1}."
            if len(model.units) > 1
            else "the model needs at least two units for that; fedavg trains a model of one unit."
        )
        raise RequestError(
            f"the last {count} units cannot be separated from a model of {len(model.units)}: "
            f"{advice}{frozen_note(model)}"
        )
