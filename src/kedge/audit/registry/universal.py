"""The checks that any method can take, a user's own too: they need to know nothing about it."""

from copy import deepcopy
from functools import partial

from kedge.audit.finding import Check
from kedge.audit.properties import agreement, differences, reductions, resuming, values
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD
from kedge.core.schedules import all_units


def universal(method: str, algorithm: Algorithm) -> list[Check]:
    """Stages, slopes of its objective, engines, frozen leaves, resuming, its value."""
    momentum = 0.9 if takes_momentum(algorithm) else 0.0
    before = deepcopy(algorithm)  # the checks before it may leave something on the algorithm
    checks = [Check(method, "two stages are one", "reduction", partial(reductions.two_stages, algorithm))]
    if differences.has_objective(algorithm):
        slopes = partial(differences.finite_differences, algorithm)
        checks.append(Check(method, "finite differences", "gradient", slopes))
    checks += [
        Check(method, "sequential is stacked", "engines", partial(agreement.engines_agree, algorithm)),
        Check(method, "units never opened", "frozen", partial(agreement.never_opened, algorithm, momentum)),
    ]
    if algorithm.schedule is not all_units:
        late = partial(agreement.opened_late, algorithm)
        checks.append(Check(method, "units opened late", "frozen", late))
    return [
        *checks,
        Check(method, "stopped and taken up", "resume", partial(resuming.resumes, before)),
        Check(method, "pickle, hash, print", "value", partial(values.is_value, algorithm)),
    ]


def takes_momentum(algorithm: Algorithm) -> bool:
    """Whether the method trains with momentum, or refuses it."""
    try:
        Stage(algorithm, 1, LocalTraining(optimizer=SGD(0.1, 0.9)))
    except RequestError:
        return False
    return True
