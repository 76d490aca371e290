"""One row a method: every contract test runs on every row.

KEDGE_METHOD=my_file.py:factory puts a method outside the package in the place of all rows.
"""

import os
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
from kedge.algorithms.fix_last import fix_last
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.lg_fedavg import lg_fedavg
from kedge.algorithms.moon import moon
from kedge.algorithms.top_down import top_down
from kedge.config.imports import imported_method
from kedge.core.algorithm import Algorithm
from kedge.measure.last_models import LastModels
from kedge.measure.updates import Updates
from kedge.rules.gradient_spread import GradientSpread

BUILT_IN: dict[str, Algorithm] = {
    "fedavg": fedavg(),
    "fedavg-uniform": fedavg("uniform"),
    "fedprox": fedprox(0.3),
    "feddyn": feddyn(0.1),
    "feddyn-data": feddyn(0.1, "data"),
    "feddyn-no-reg": feddyn_no_reg(),
    "feddyn-no-h": feddyn_no_h(0.1),
    "feddc": feddc(0.1),
    "feddecorr": feddecorr(),
    "fedntd": fedntd(temperature=2.0),
    "scaffold": scaffold(),
    "scaffold-momentum": scaffold(allow_momentum=True),
    "fedpvr": fedpvr(2),
    "moon": moon(projection=6),
    "moon-features": moon(2.0, projection=0),
    "fedtr": fedtr(),
    "fedtr-accumulate": fedtr(0.5, 0.1, "accumulate"),
    "fedtr-features": fedtr(strength_drift=0.0),
    "fedtr-drift": fedtr(0.0),
    "fedper": fedper(),
    "lg-fedavg": lg_fedavg(),
    "fedrep": fedrep(),
    "fedrod": fedrod(),
    "fedbabu": fedbabu(),
    "fedavgm": fedavgm(),
    "fedavgm-ema": fedavgm(0.5, "ema"),
    "fedadam": fedadam(),
    "fedadam-zero": fedadam(0.01, start="zero"),
    "fedexp": fedexp(),
    "fedexp-official": fedexp(0.1, "official-code", epsilon_decay=0.9),
    "fedexp-fedbug": fedexp(rule="fedbug-code", weights="uniform"),
    "fednova": fednova(),
    "fedbug+fedavg": fedbug(fedavg()),
    "fedbug+fedprox": fedbug(fedprox(0.3), 0.8),
    "fedbug+feddyn": fedbug(feddyn(0.1), 0.8),
    "fedbug+scaffold": fedbug(scaffold(), 0.8),
    "fedbug+fednova": fedbug(fednova(), 0.8),
    "top-down+fedavg": replace(fedavg(), schedule=top_down(0.8)),
    "fix-last+fedavg": replace(fedavg(), schedule=fix_last()),
    "vanilla+fedavg": replace(fedavg(), schedule=vanilla((0, 2))),
    "anti+fedavg": replace(fedavg(), schedule=anti((1, 2), strict=True)),
    "fedavg, all": replace(fedavg(), corrections=(LastModels(),)),
    "feddyn, spread": replace(feddyn(0.1), corrections=(*feddyn(0.1).corrections, GradientSpread(0.1))),
    "feddyn, updates": replace(feddyn(0.1), corrections=(*feddyn(0.1).corrections, Updates(()))),
}

NO_MOMENTUM = {"feddc", "scaffold", "fedpvr", "fedbug+scaffold"}  # refused at construction
NO_ADAM = {*NO_MOMENTUM, "scaffold-momentum", "fednova", "fedbug+fednova"}  # likewise

OWN = os.environ.get("KEDGE_METHOD")
ALGORITHMS = {"outside": imported_method(OWN)} if OWN else BUILT_IN
