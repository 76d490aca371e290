"""The methods under audit: the examples of the registry of methods, by name."""

from kedge.algorithms import examples
from kedge.core.algorithm import Algorithm

AUDITED: dict[str, Algorithm] = dict(examples())


def names_of(method: str) -> set[str]:
    """The names that select `method` on the command line: fedbug and feddyn also select fedbug+feddyn."""
    return {method, *(part.partition("(")[0] for part in method.split("+"))}
