"""Ranges of arguments: a signature declares them, and `checked` adds the check.

    @checked
    def fedprox(mu: Annotated[float, Field(ge=0, description="0 is FedAvg")] = 0.01) -> Algorithm: ...

`fedprox(mu=-1)` then raises "fedprox(mu=-1): need mu ≥ 0; 0 is FedAvg." The description says how to repair
the value. A condition on several arguments is a check in the factory's own code.
"""

import inspect
import operator
from collections.abc import Callable, Mapping
from functools import cache, partial, reduce, wraps
from math import inf
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from pydantic import Field
from pydantic.fields import FieldInfo

from kedge.core.errors import RequestError

Count = Annotated[int, Field(ge=1)]
WholeNumber = Annotated[int, Field(ge=0)]

Target = TypeVar("Target", bound=Callable[..., Any])
COMPARISONS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (operator.ge, "≥"),
    "gt": (operator.gt, ">"),
    "le": (operator.le, "≤"),
    "lt": (operator.lt, "<"),
}
Bounds = dict[str, float]  # from names of COMPARISONS


@overload
def checked(target: Target) -> Target: ...
@overload
def checked(*, prefix: str) -> Callable[[Target], Target]: ...
def checked(target: Any = None, *, prefix: str | None = None) -> Any:
    """Decorate a factory or a dataclass: check its arguments against the `Field`s in its signature.

    Errors name "factory(argument=value)"; with a `prefix`, such as "participation.", they name the
    configuration key "prefix.argument = value".
    """
    if target is None:
        return partial(_decorate, prefix=prefix)
    return _decorate(target, prefix)


def _decorate(target: Any, prefix: str | None) -> Any:
    if isinstance(target, type):
        dataclass: Any = target
        dataclass.__init__ = _with_check(dataclass.__init__, target.__name__, prefix)
        return target
    return _with_check(target, target.__name__.replace("_", "-"), prefix)


def _with_check(function: Callable[..., Any], name: str, prefix: str | None) -> Callable[..., Any]:
    """A function that checks its arguments and calls `function`."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            values = signature.bind(*args, **options).arguments
        except TypeError:
            values = {}  # the call below raises Python's own error
        check_ranges(function, values, name if prefix is None else "", prefix)
        return function(*args, **options)

    call.__signature__ = _without_fields(signature)  # type: ignore[attr-defined]  # read by help()
    return call


def _without_fields(signature: inspect.Signature) -> inspect.Signature:
    """The signature with plain types, as help() shows it."""
    plain = [p.replace(annotation=_plain_type(p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=plain)


def _plain_type(annotation: Any) -> Any:
    """The type of an `Annotated`; other types unchanged."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return reduce(operator.or_, map(_plain_type, get_args(annotation)))
    return annotation


def check_ranges(
    function: Callable[..., Any], values: Mapping[str, Any], name: str, prefix: str | None = None
) -> None:
    """Raise a RequestError for the first of `values` that is out of the range in the function's signature."""
    for key, (number_type, field, optional) in fields(function).items():
        if key not in values or (optional and values[key] is None):
            continue
        if in_range(values[key], number_type, field):
            continue
        value = f"{values[key]!r}" if isinstance(values[key], str) else f"{values[key]}"
        setting = f"{name}({key}={value})" if prefix is None else f"{prefix}{key} = {value}"
        remedy = f"; {field.description}" if field.description else ""
        raise RequestError(f"{setting}: need {requirement(key, number_type, field)}{remedy}.")


@cache
def fields(function: Callable[..., Any]) -> dict[str, tuple[type, FieldInfo, bool]]:
    """For each `Annotated` parameter of a function: its type, its `Field`, and whether it may be None."""
    found: dict[str, tuple[type, FieldInfo, bool]] = {}
    for key, hint in get_type_hints(function, include_extras=True).items():
        for part in (hint, *get_args(hint)):  # Annotated may be a part of `Annotated[…] | None`
            if get_origin(part) is Annotated:
                number_type, field = get_args(part)
                found[key] = number_type, field, part is not hint
    return found


def bounds_of(field: FieldInfo) -> Bounds:
    """The bounds of a `Field` by their names in pydantic: {"ge": 0, "lt": 1}."""
    return {
        name: getattr(bound, name) for bound in field.metadata for name in COMPARISONS if hasattr(bound, name)
    }


def in_range(value: Any, number_type: type, field: FieldInfo) -> bool:
    """Whether the value is a number that meets all bounds, and a whole number if `number_type` is int."""
    if not isinstance(value, Real):
        return False
    if number_type is int and (isinstance(value, bool) or not isinstance(value, Integral)):
        return False
    return all(COMPARISONS[name][0](value, bound) for name, bound in bounds_of(field).items())


def requirement(key: str, number_type: type, field: FieldInfo) -> str:
    """The range in words: "0 ≤ beta < 1", "a finite alpha > 0", "a whole number of at least 1"."""
    bounds = bounds_of(field)
    if number_type is int and set(bounds) == {"ge"}:
        return f"a whole number of at least {bounds['ge']}"
    if number_type is int and set(bounds) == {"ge", "le"}:
        return f"a whole number from {bounds['ge']} to {bounds['le']}"
    if bounds.get("lt") == inf:
        del bounds["lt"]
        return f"a finite {inequality(key, bounds)}"
    return inequality(key, bounds)


def inequality(key: str, bounds: Bounds) -> str:
    """The bounds as an inequality: "mu ≥ 0" for one bound, "0 ≤ beta < 1" for two."""
    signs = {name: sign for name, (_, sign) in COMPARISONS.items()}
    if len(bounds) == 1:
        [(name, bound)] = bounds.items()
        return f"{key} {signs[name]} {bound}"
    lower = f"{bounds['ge']} ≤" if "ge" in bounds else f"{bounds['gt']} <"
    upper = f"≤ {bounds['le']}" if "le" in bounds else f"< {bounds['lt']}"
    return f"{lower} {key} {upper}"
