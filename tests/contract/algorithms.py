"""The methods of the contract tests: the examples of the registry, and further variants.

KEDGE_METHOD=my_file.py:factory replaces all of them by a method outside the package.
"""

import os
from dataclasses import replace

from kedge.algorithms import (
    anti,
    examples,
    fedadam,
    fedavg,
    fedavgm,
    feddyn,
    fedexp,
    fedprox,
    fedpvr,
    fix_last,
    moon,
    scaffold,
    vanilla,
)
from kedge.config.imports import import_method
from kedge.core.algorithm import Algorithm
from kedge.measure.last_models import LastModels
from kedge.measure.updates import Updates
from kedge.privacy.clipping import with_clipping
from kedge.privacy.settings import Privacy
from kedge.rules.gradient_spread import GradientSpread

BUILT_IN: dict[str, Algorithm] = {
    **dict(examples()),
    "fedavg(uniform)": fedavg("uniform"),
    "fedprox(strong)": fedprox(0.3),
    "moon(strong)": moon(2.0, projection=0),
    "scaffold(momentum)": scaffold(allow_momentum=True),
    "fedpvr(two)": fedpvr(2),
    "fedavgm(default)": fedavgm(),
    "fedavgm(ema)": fedavgm(0.5, "ema"),
    "fedadam(default)": fedadam(),
    "fedadam(zero)": fedadam(0.01, start="zero"),
    "fedexp(official)": fedexp(0.1, "official-code", epsilon_decay=0.9),
    "fedexp(fedbug)": fedexp(rule="fedbug-code", weights="uniform"),
    "fix-last+fedavg": replace(fedavg(), schedule=fix_last()),
    "vanilla+fedavg": replace(fedavg(), schedule=vanilla((0, 2))),
    "anti+fedavg": replace(fedavg(), schedule=anti((1, 2), strict=True)),
    "fedavg, all": replace(fedavg(), corrections=(LastModels(),)),
    "feddyn, spread": replace(feddyn(0.1), corrections=(*feddyn(0.1).corrections, GradientSpread(0.1))),
    "feddyn, private": with_clipping(feddyn(0.1), Privacy(0.3, 1.0, adaptive=True)),
    "feddyn, updates": replace(feddyn(0.1), corrections=(*feddyn(0.1).corrections, Updates(()))),
}

OUTSIDE = os.environ.get("KEDGE_METHOD")
ALGORITHMS = {"outside": import_method(OUTSIDE)} if OUTSIDE else BUILT_IN
