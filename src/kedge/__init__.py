"""kedge: federated learning when clients' data differ."""

from kedge.algorithms import (
    fedadam,
    fedavg,
    fedavgm,
    fedbug,
    feddc,
    feddecorr,
    feddyn,
    feddyn_no_h,
    feddyn_no_reg,
    fedexp,
    fednova,
    fedntd,
    fedprox,
    scaffold,
)
from kedge.api import run, train
from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.core.model import Output
from kedge.core.optimizers import SGD, Adam
from kedge.data.dataset import Dataset
from kedge.running.execute import Result
from kedge.version import __version__

__all__ = [
    "SGD",
    "Adam",
    "CheckpointError",
    "DataError",
    "Dataset",
    "Diverged",
    "Output",
    "RequestError",
    "Result",
    "__version__",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbug",
    "feddc",
    "feddecorr",
    "feddyn",
    "feddyn_no_h",
    "feddyn_no_reg",
    "fedexp",
    "fednova",
    "fedntd",
    "fedprox",
    "run",
    "scaffold",
    "train",
]
