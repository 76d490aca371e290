"""One file a method. METHODS and SCHEDULES name the factories whose signatures are the configuration."""

from collections.abc import Callable

from kedge.algorithms.fedadam import fedadam
from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.fedavgm import fedavgm
from kedge.algorithms.fedbabu import fedbabu
from kedge.algorithms.fedbug import bottom_up, fedbug
from kedge.algorithms.feddc import feddc
from kedge.algorithms.feddecorr import feddecorr
from kedge.algorithms.feddyn import feddyn
from kedge.algorithms.feddyn_ablations import feddyn_no_h, feddyn_no_reg
from kedge.algorithms.fedexp import fedexp
from kedge.algorithms.fednova import fednova
from kedge.algorithms.fedntd import fedntd
from kedge.algorithms.fedper import fedper
from kedge.algorithms.fedprox import fedprox
from kedge.algorithms.fedpvr import fedpvr
from kedge.algorithms.fedrep import fedrep
from kedge.algorithms.fedrod import fedrod
from kedge.algorithms.fedtr import fedtr
from kedge.algorithms.fix_last import fix_last, fix_last_two
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.lg_fedavg import lg_fedavg
from kedge.algorithms.moon import moon
from kedge.algorithms.scaffold import scaffold
from kedge.algorithms.scheduled import scheduled
from kedge.algorithms.top_down import top_down
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Schedule, all_units

__all__ = [
    "METHODS",
    "SCHEDULES",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedbug",
    "feddc",
    "feddecorr",
    "feddyn",
    "feddyn_no_h",
    "feddyn_no_reg",
    "fedexp",
    "fednova",
    "fedntd",
    "fedper",
    "fedprox",
    "fedpvr",
    "fedrep",
    "fedrod",
    "fedtr",
    "lg_fedavg",
    "moon",
    "scaffold",
    "scheduled",
]


def everything() -> Schedule:
    """Every unit trains in every step."""
    return all_units


METHODS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "feddyn": feddyn,
    "feddyn-no-reg": feddyn_no_reg,
    "feddyn-no-h": feddyn_no_h,
    "feddc": feddc,
    "feddecorr": feddecorr,
    "fedntd": fedntd,
    "moon": moon,
    "fedtr": fedtr,
    "scaffold": scaffold,
    "fedpvr": fedpvr,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
    "fedexp": fedexp,
    "fednova": fednova,
    "fedper": fedper,
    "lg-fedavg": lg_fedavg,
    "fedrep": fedrep,
    "fedrod": fedrod,
    "fedbabu": fedbabu,
}

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "all": everything,
    "fedbug": bottom_up,
    "top-down": top_down,
    "fix-last": fix_last,
    "fix-last-two": fix_last_two,
    "vanilla": vanilla,
    "anti": anti,
}
