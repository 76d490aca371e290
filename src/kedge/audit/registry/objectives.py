"""Checks that follow from a method's objective: the client's gradient, and the limit on quadratics."""

from functools import partial

from kedge.audit.check import Check
from kedge.audit.oracles import scaffold
from kedge.audit.problems import perceptron
from kedge.audit.references import feature_objectives, gradients, objectives
from kedge.audit.references.limit_points import limit_checks
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import all_units

# By the slot of the method's first correction, or by its name if it has no correction. Others: FedAvg's.
OBJECTIVES: dict[str, objectives.Objective] = {
    "proximal": objectives.fedprox,
    "dynamic": objectives.feddyn,
    "control": objectives.scaffold,
    "drift": objectives.feddc,
    "decorrelation": objectives.feddecorr,
    "not-true": objectives.fedntd,
    "contrast": feature_objectives.moon,
    "centroids": feature_objectives.fedtr,
    "released-drift": feature_objectives.fedtr,
    "fedrod": feature_objectives.fedrod,
}


def objective_checks(method: str, algorithm: Algorithm) -> list[Check]:
    """The gradient of the objective written out, the limit on quadratics, and SCAFFOLD's c_i."""
    slot = algorithm.corrections[0].name if algorithm.corrections else method
    objective = OBJECTIVES.get(slot, objectives.fedavg)
    open_units = 2 if algorithm.schedule is not all_units else len(perceptron(algorithm).units)
    gradient = partial(gradients.local_gradient, algorithm, objective, open_units)
    checks = [Check(method, "closed form", "gradient", gradient), *limit_checks(method, algorithm)]
    if slot == "control":
        corrected = ("t",) if method == "fedpvr" else ("s", "t")
        mean = partial(scaffold.mean_gradient, algorithm, corrected)
        checks.append(Check(method, "c_i is the mean gradient", "gradient", mean))
    return checks
