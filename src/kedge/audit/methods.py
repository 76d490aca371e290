"""The methods under audit, by name; one row a method."""

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.core.algorithm import Algorithm

METHODS: dict[str, Algorithm] = {
    "fedavg": fedavg(),
    "fedprox": fedprox(0.1),
    "feddyn": feddyn(0.1),
    "feddyn(data)": feddyn(0.1, "data"),
    "scaffold": scaffold(),
    "fedbug+fedavg": fedbug(fedavg(), 0.8),
    "fedbug+fedprox": fedbug(fedprox(0.1), 0.8),
    "fedbug+feddyn": fedbug(feddyn(0.1), 0.8),
    "fedbug+scaffold": fedbug(scaffold(), 0.8),
}


def parts(method: str) -> set[str]:
    """The names a method answers to: fedbug+feddyn is also fedbug and feddyn."""
    return {method, *(part.partition("(")[0] for part in method.split("+"))}
