"""One row a method: every contract test runs on every row."""

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.core.algorithm import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": fedavg(),
    "fedavg-uniform": fedavg("uniform"),
    "fedprox": fedprox(0.3),
    "feddyn": feddyn(0.1),
    "feddyn-data": feddyn(0.1, "data"),
    "scaffold": scaffold(),
    "scaffold-momentum": scaffold(allow_momentum=True),
    "fedbug+fedavg": fedbug(fedavg()),
    "fedbug+fedprox": fedbug(fedprox(0.3), 0.8),
    "fedbug+feddyn": fedbug(feddyn(0.1), 0.8),
    "fedbug+scaffold": fedbug(scaffold(), 0.8),
}

NO_MOMENTUM = {"scaffold", "fedbug+scaffold"}  # refused at construction
