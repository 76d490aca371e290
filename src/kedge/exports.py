"""The public names of kedge. `import kedge` loads this module when one of them is first used."""

from kedge.algorithms import (
    fedadam,
    fedavg,
    fedavgm,
    fedbabu,
    fedbug,
    feddc,
    feddecorr,
    feddyn,
    feddyn_no_h,
    feddyn_no_reg,
    fedexp,
    fednova,
    fedntd,
    fedper,
    fedprox,
    fedpvr,
    fedrep,
    fedrod,
    fedtr,
    lg_fedavg,
    moon,
    scaffold,
    scheduled,
)
from kedge.api import run, train
from kedge.core.algorithm import Tune
from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.core.model import Output
from kedge.core.optimizers import SGD, Adam
from kedge.data.dataset import Dataset
from kedge.measure.settings import Measure
from kedge.rules import plateau, proposition1, threshold_of
from kedge.running.result import Result
from kedge.version import __version__

__all__ = [
    "SGD",
    "Adam",
    "CheckpointError",
    "DataError",
    "Dataset",
    "Diverged",
    "Measure",
    "Output",
    "RequestError",
    "Result",
    "Tune",
    "__version__",
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
    "plateau",
    "proposition1",
    "run",
    "scaffold",
    "scheduled",
    "threshold_of",
    "train",
]
