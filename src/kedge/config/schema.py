"""Check the tables of a configuration against signatures: a factory's arguments are its configuration.

Unknown keys, missing keys and wrong types are RequestErrors that name the key, the value and the allowed
values.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from kedge.core.errors import RequestError, nearest

Kind = TypeVar("Kind")


@cache
def parameters(target: Callable[..., Any]) -> dict[str, tuple[Any, inspect.Parameter]]:
    """Type and parameter, with its default, of each argument of a factory or dataclass, by name."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(function)
    return {k: (hints.get(k, Any), p) for k, p in inspect.signature(target).parameters.items()}


def with_defaults(
    target: Callable[..., Any],
    table: Mapping[str, Any],
    path: str,
    excluded: tuple[str, ...] = (),
    further: Callable[..., Any] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """All arguments of `target`: the checked values of `table`, and defaults for missing keys.

    `path` is the table's key and `name` the target's name, for error messages. The table may not set the
    arguments in `excluded`. It may also set the arguments of the function `further`.
    """
    signature = {**parameters(target), **(parameters(further) if further else {})}
    known = {k: v for k, v in signature.items() if k not in excluded}
    for key in table:
        if key not in known:
            raise RequestError(
                f"unknown key {full_key(path, key)}.{nearest(key, known)} "
                f"Allowed{f' for name = {name!r}' if name else ''}: {', '.join(known) or 'none'}."
            )
    values: dict[str, Any] = {}
    for key, (hint, parameter) in known.items():
        if key in table:
            values[key] = typed_value(hint, table[key], full_key(path, key))
        elif parameter.default is inspect.Parameter.empty:
            raise RequestError(f"missing key {full_key(path, key)}: it has no default.")
        else:
            values[key] = parameter.default
    return values


def typed_value(hint: Any, value: Any, path: str) -> Any:
    """`value` checked against the type `hint`; only lists become tuples, and whole numbers floats."""
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        reason = reason.replace("Input should be", "need")
        allowed = [str(choice) for choice in get_args(hint)] if get_origin(hint) is Literal else []
        remedy = nearest(str(value), allowed)
        raise RequestError(f"{path} = {value!r}: {reason[0].lower()}{reason[1:]}.{remedy}") from None


def named_entry(kinds: Mapping[str, Kind], name: Any, path: str) -> Kind:
    """The entry with this name; raise if the name is unknown."""
    if name not in kinds:
        raise RequestError(
            f"{path} = {name!r}: no such name.{nearest(str(name), kinds)} Allowed: {', '.join(kinds)}."
        )
    return kinds[name]


def full_key(path: str, key: str) -> str:
    """The key with the path of its table before it: training.epochs."""
    return f"{path}.{key}" if path else key
