"""An algorithm is a value: it pickles, compares, hashes, and prints its hyper-parameters; so does a stage."""

import pickle
from dataclasses import fields, is_dataclass

from kedge.audit.finding import Finding, holds
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD


def is_value(algorithm: Algorithm) -> Finding:
    """Pickled and read back it is the same value, and its text names every hyper-parameter."""
    again = pickle.loads(pickle.dumps(algorithm))
    text = repr(algorithm)
    printed = [
        f"{field.name}={getattr(part, field.name)!r}"
        for part in (*algorithm.corrections, algorithm.schedule)
        if is_dataclass(part)
        for field in fields(part)
    ]
    missing = [entry for entry in printed if entry not in text]
    if not (again == algorithm and hash(again) == hash(algorithm) and repr(again) == text):
        return holds(False, "pickled and read back it is another value: make its parts frozen dataclasses")
    stage = Stage(algorithm, 3, LocalTraining(2, 10, SGD(0.05, weight_decay=1e-3), clip=10.0))
    stage_again = pickle.loads(pickle.dumps(stage))
    if not (stage_again == stage and hash(stage_again) == hash(stage)):
        return holds(False, "pickled and read back in a stage it is another value")
    return holds(
        not missing, f"prints {', '.join(printed) or 'no hyper-parameters'}; missing: {missing or 'none'}"
    )
