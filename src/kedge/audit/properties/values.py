"""An algorithm and a stage are values: they pickle, compare, hash, and print their hyper-parameters."""

import pickle
from dataclasses import fields, is_dataclass

from kedge.audit.finding import Finding, no_violations
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD


def is_value(algorithm: Algorithm) -> Finding:
    """A pickled copy equals the algorithm, and its text has every hyper-parameter."""
    copy = pickle.loads(pickle.dumps(algorithm))
    text = repr(algorithm)
    printed = [
        f"{field.name}={getattr(part, field.name)!r}"
        for part in (*algorithm.corrections, algorithm.schedule)
        if is_dataclass(part)
        for field in fields(part)
    ]
    missing = [entry for entry in printed if entry not in text]
    if not (copy == algorithm and hash(copy) == hash(algorithm) and repr(copy) == text):
        return Finding(False, None, "a pickled copy is another value: make its parts frozen dataclasses")
    stage = Stage(algorithm, 3, LocalTraining(2, 10, SGD(0.05, weight_decay=1e-3), clip=10.0))
    stage_copy = pickle.loads(pickle.dumps(stage))
    if not (stage_copy == stage and hash(stage_copy) == hash(stage)):
        return Finding(False, None, "a pickled copy of its stage is another value")
    return no_violations(f"prints {', '.join(printed) or 'no hyper-parameters'}", missing, "missing")
