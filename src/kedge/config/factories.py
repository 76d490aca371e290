"""Look up factories by name: built-in factories, or the user's own as file.py:name or package.module:name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.config.imports import import_object
from kedge.config.schema import named_entry
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD, Adam
from kedge.core.schedules import Plain, Schedule
from kedge.data.datasets import BUILT_IN
from kedge.data.partitions.partition import PARTITIONS
from kedge.models import MODELS
from kedge.rules import RULES

OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "adam": Adam}
FACTORIES: dict[str, Mapping[str, Callable[..., Any]]] = {  # key of a configuration -> factories by name
    "data": BUILT_IN,
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHOD_FACTORIES,
    "schedule": SCHEDULE_FACTORIES,
    "optimizer": OPTIMIZERS,
    "when": RULES,
}


def factory_of(key: str, name: Any) -> Callable[..., Any]:
    """The factory with this name for the table [key]: one of FACTORIES, or the user's own."""
    if not isinstance(name, str) or ":" not in name:
        return named_entry(FACTORIES[key], name, f"{key}.name")
    found = import_object(name)
    if key == "method" and isinstance(found, Algorithm):
        return lambda: found
    if key == "schedule" and is_schedule(found):
        return lambda: Plain(found)
    if not callable(found):
        raise RequestError(f"{key}.name = {name!r}: it is a {type(found).__name__}, not a function.")
    return found  # type: ignore[no-any-return]  # the user's own code


def is_schedule(found: Any) -> bool:
    """Whether `found` is a schedule and not a factory of one: its arguments are `clock` and `units`."""
    return callable(found) and [*inspect.signature(found).parameters] == ["clock", "units"]


def role_of(name: str) -> str:
    """The role of the user's own object of this name: method or schedule. Raise if it is neither.

    The role of a factory follows from its return annotation.
    """
    found = import_object(name)
    if isinstance(found, Algorithm):
        return "method"
    if is_schedule(found):
        return "schedule"
    returns = inspect.signature(found).return_annotation if callable(found) else None
    if returns in (Algorithm, "Algorithm"):
        return "method"
    if returns not in (Schedule, "Schedule"):
        raise RequestError(
            f"{name}: is it a method or a schedule? Name an Algorithm, a function (clock, units) -> flags, "
            "or a factory with a return annotation: -> Algorithm, or -> Schedule."
        )
    return "schedule"
