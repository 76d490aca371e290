"""The public names of kedge. `import kedge` loads this module when one of them is first used."""

from typing import Any

from kedge.algorithms import fedbug, method_factories, scheduled
from kedge.api import run, train
from kedge.core import tree
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.core.model import Output
from kedge.core.optimizers import SGD, Adam
from kedge.data.dataset import Dataset
from kedge.measure.settings import Measure
from kedge.privacy.settings import Privacy
from kedge.rules import plateau, proposition1, threshold_of
from kedge.running.result import Result
from kedge.version import __version__

__all__ = [
    "SGD",
    "Adam",
    "Algorithm",
    "CheckpointError",
    "Cohort",
    "Correction",
    "DataError",
    "Dataset",
    "Diverged",
    "End",
    "LocalTraining",
    "Measure",
    "Output",
    "Privacy",
    "RequestError",
    "Result",
    "Stage",
    "Step",
    "Tune",
    "__version__",
    "fedbug",
    "plateau",
    "proposition1",
    "run",
    "scheduled",
    "threshold_of",
    "train",
    "tree",
]


def public_names() -> dict[str, Any]:
    """The names above and the factories of all registered methods, with their objects."""
    return dict(sorted({**{name: globals()[name] for name in __all__}, **method_factories()}.items()))
