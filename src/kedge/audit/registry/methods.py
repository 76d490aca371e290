"""The algorithms under audit: the examples of the registry, by name."""

from kedge.algorithms import examples
from kedge.core.algorithm import Algorithm

AUDITED: dict[str, Algorithm] = dict(examples())


def parts(method: str) -> set[str]:
    """The names a method answers to: fedbug+feddyn is also fedbug and feddyn."""
    return {method, *(part.partition("(")[0] for part in method.split("+"))}
