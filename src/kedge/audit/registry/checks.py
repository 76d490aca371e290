"""All checks of the audit."""

from kedge.audit.check import Check
from kedge.audit.oracles.measurements import cost, drift, features, protocol, theory
from kedge.audit.registry import (
    client_terms,
    drift_corrections,
    feature_terms,
    personalization,
    server_rules,
)
from kedge.audit.registry.every_method import property_checks
from kedge.audit.registry.methods import AUDITED
from kedge.audit.registry.objectives import objective_checks

METHODS = (drift_corrections, client_terms, server_rules, feature_terms, personalization)
MEASUREMENTS = (protocol, theory, drift, features, cost)
LAST = ("protocol", "drift", "features", "theory", "cost")  # rows of the audit that are no methods


def all_checks() -> list[Check]:
    """Every check of every method: oracles, reductions, gradients and limits, properties."""
    oracles = [entry for module in (*METHODS, *MEASUREMENTS) for entry in module.oracle_checks()]
    reductions = [entry for module in METHODS for entry in module.reduction_checks()]
    return [
        *(Check(method, name, "oracle", run) for method, name, run in oracles),
        *(Check(method, name, "reduction", run) for method, name, run in reductions),
        *(
            check
            for method, algorithm in AUDITED.items()
            for check in (*objective_checks(method, algorithm), *property_checks(method, algorithm))
        ),
    ]
