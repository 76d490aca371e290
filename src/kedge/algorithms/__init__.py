"""One file a method. METHODS and SCHEDULES name the factories whose signatures are the configuration."""

from collections.abc import Callable

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.fedbug import bottom_up, fedbug
from kedge.algorithms.feddyn import feddyn
from kedge.algorithms.fedprox import fedprox
from kedge.algorithms.scaffold import scaffold
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Schedule, all_units

__all__ = ["METHODS", "SCHEDULES", "fedavg", "fedbug", "feddyn", "fedprox", "scaffold"]


def everything() -> Schedule:
    """Every unit trains in every step."""
    return all_units


METHODS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "feddyn": feddyn,
    "scaffold": scaffold,
}

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "all": everything,
    "fedbug": bottom_up,
}
