"""Factories by name: those built in, and what a user names in a file or module of their own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kedge.config.imports import imported
from kedge.config.schema import named
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError
from kedge.core.schedules import Plain, Schedule


def factory_of(key: str, kinds: Mapping[str, Callable[..., Any]], name: Any) -> Callable[..., Any]:
    """The factory of a table's name; file.py:name and package.module:name are the user's own."""
    if not isinstance(name, str) or ":" not in name:
        return named(kinds, name, f"{key}.name")
    found = imported(name)
    if key == "method" and isinstance(found, Algorithm):
        return lambda: found
    if key == "schedule" and is_schedule(found):
        return lambda: Plain(found)
    if not callable(found):
        raise RequestError(f"{key}.name = {name!r}: it is a {type(found).__name__}; name a function.")
    return found  # type: ignore[no-any-return]  # whatever the user wrote


def is_schedule(found: Any) -> bool:
    """Whether this is a schedule itself, not a factory of one: it takes the clock and the units."""
    return callable(found) and [*inspect.signature(found).parameters] == ["clock", "units"]


def role_of(name: str) -> str:
    """Whether what a user names is a method or a schedule: by what it is, or says it returns."""
    found = imported(name)
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
            "or a factory that says what it returns: -> Algorithm, -> Schedule."
        )
    return "schedule"
