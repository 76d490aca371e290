"""A check of the audit, and its result."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from kedge.audit.finding import Finding

Kind = Literal["oracle", "reduction", "gradient", "quadratic", "engines", "frozen", "resume", "value"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Entries = list[tuple[str, str, Callable[[], Finding]]]  # method, name of the check, function


class Check(NamedTuple):
    """A property of a method, and the function that tests it."""

    method: str
    name: str
    kind: Kind
    run: Callable[[], Finding]


class CheckResult(NamedTuple):
    """The result of one check, as a row of the audit's tables."""

    method: str
    check: str
    kind: Kind
    passed: bool
    error: float | None
    detail: str
