"""Tables checked against a signature: a factory's arguments are its configuration.

Unknown keys, missing keys and wrong types are RequestErrors that name the key, the value and what is allowed.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from kedge.core.errors import RequestError, nearest

Kind = TypeVar("Kind")


@cache
def parameters(target: Callable[..., Any]) -> dict[str, tuple[Any, inspect.Parameter]]:
    """Name, type and default of a factory's or dataclass's arguments."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(function)
    return {k: (hints.get(k, Any), p) for k, p in inspect.signature(target).parameters.items()}


def filled(
    target: Callable[..., Any],
    table: Mapping[str, Any],
    path: str,
    given: tuple[str, ...] = (),
    also: Callable[..., Any] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """All arguments of the target, from the table and its defaults; `given` are not the user's to set.

    The table may hold the arguments of `also` as well. `name`: the target's, which a refusal tells.
    """
    every = {**parameters(target), **(parameters(also) if also else {})}
    known = {k: v for k, v in every.items() if k not in given}
    for key in table:
        if key not in known:
            raise RequestError(
                f"unknown key {dotted(path, key)}.{nearest(key, known)} "
                f"Allowed{f' for name = {name!r}' if name else ''}: {', '.join(known) or 'none'}."
            )
    values: dict[str, Any] = {}
    for key, (hint, parameter) in known.items():
        if key in table:
            values[key] = checked(hint, table[key], dotted(path, key))
        elif parameter.default is inspect.Parameter.empty:
            raise RequestError(f"missing key {dotted(path, key)}: it has no default.")
        else:
            values[key] = parameter.default
    return values


def checked(hint: Any, value: Any, path: str) -> Any:
    """The value as this type; strict, but lists may stand for tuples and whole numbers for floats."""
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RequestError(f"{path} = {value!r}: {reason[0].lower()}{reason[1:]}.") from None


def named(kinds: Mapping[str, Kind], name: Any, path: str) -> Kind:
    """The factory, or what else there is, of this name."""
    if name not in kinds:
        raise RequestError(
            f"{path} = {name!r}: no such name.{nearest(str(name), kinds)} Allowed: {', '.join(kinds)}."
        )
    return kinds[name]


def dotted(path: str, key: str) -> str:
    """A key's full name."""
    return f"{path}.{key}" if path else key
