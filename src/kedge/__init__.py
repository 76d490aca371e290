"""kedge: federated learning when clients' data differ."""

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
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
    "fedavg",
    "fedbug",
    "feddyn",
    "fedprox",
    "run",
    "scaffold",
    "train",
]
