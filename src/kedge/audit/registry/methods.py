"""The methods under audit, by name; one row a method."""

from dataclasses import replace

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.algorithms.fedadam import fedadam
from kedge.algorithms.fedavgm import fedavgm
from kedge.algorithms.fedbabu import fedbabu
from kedge.algorithms.feddc import feddc
from kedge.algorithms.feddecorr import feddecorr
from kedge.algorithms.feddyn_ablations import feddyn_no_h, feddyn_no_reg
from kedge.algorithms.fedexp import fedexp
from kedge.algorithms.fednova import fednova
from kedge.algorithms.fedntd import fedntd
from kedge.algorithms.fedper import fedper
from kedge.algorithms.fedpvr import fedpvr
from kedge.algorithms.fedrep import fedrep
from kedge.algorithms.fedrod import fedrod
from kedge.algorithms.fedtr import fedtr
from kedge.algorithms.layer_expansion import vanilla
from kedge.algorithms.lg_fedavg import lg_fedavg
from kedge.algorithms.moon import moon
from kedge.algorithms.top_down import top_down
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Schedule, over


def under(schedule: Schedule, base: Algorithm, name: str) -> Algorithm:
    """A method under a schedule; where it has one of its own, a unit trains if both open it."""
    return replace(base, name=name, schedule=over(base.schedule, schedule))


METHODS: dict[str, Algorithm] = {
    "fedavg": fedavg(),
    "fedprox": fedprox(0.1),
    "feddyn": feddyn(0.1),
    "feddyn(data)": feddyn(0.1, "data"),
    "feddyn-no-reg": feddyn_no_reg(),
    "feddyn-no-h": feddyn_no_h(0.1),
    "feddc": feddc(0.1),
    "feddecorr": feddecorr(0.5),
    "fedntd": fedntd(0.7, 2.0),
    "moon": moon(0.7, projection=0),
    "moon(projection)": moon(0.7, projection=4),
    "fedtr": fedtr(0.7, 0.3, drift_rate=0.2),
    "fedtr(proof)": fedtr(0.7, 0.3, "accumulate"),  # the rule of its proof; longer names do not fit
    "fedtr(features)": fedtr(0.7, 0.0),
    "fedtr(drift)": fedtr(0.0, 0.3, drift_rate=0.2),
    "scaffold": scaffold(),
    "fedpvr": fedpvr(),
    "fedavgm": fedavgm(0.5),  # where they come to rest within the audit's rounds
    "fedadam": fedadam(0.7, 0.5, 0.9, tau=0.5),
    "fedexp": fedexp(0.2),
    "fednova": fednova(),
    "fedper": fedper(),
    "lg-fedavg": lg_fedavg(),
    "fedrep": fedrep(),
    "fedrod": fedrod(),
    "fedbabu": fedbabu(),
    "fedbug+fedavg": fedbug(fedavg(), 0.8),
    "fedbug+fedprox": fedbug(fedprox(0.1), 0.8),
    "fedbug+feddyn": fedbug(feddyn(0.1), 0.8),
    "fedbug+scaffold": fedbug(scaffold(), 0.8),
    "fedbug+fednova": fedbug(fednova(), 0.8),
    "top-down+fedavg": under(top_down(0.8), fedavg(), "top-down+fedavg"),
    "vanilla+fedbabu": under(vanilla((0, 2)), fedbabu(), "vanilla+fedbabu"),
}


def parts(method: str) -> set[str]:
    """The names a method answers to: fedbug+feddyn is also fedbug and feddyn."""
    return {method, *(part.partition("(")[0] for part in method.split("+"))}
