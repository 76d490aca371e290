"""The properties that every method must have, kedge's and a user's own.

The contract tests and the audit run the same properties. Each property gets its own copy of the algorithm, so
that state that a method keeps on itself does not pass from one property to the next.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import NamedTuple

from kedge.audit.check import Check, Kind
from kedge.audit.finding import Finding
from kedge.audit.problems import SOME_CLIENTS, convolutional, perceptron
from kedge.audit.properties import (
    engines,
    finite_differences,
    frozen_backbone,
    frozen_units,
    purity,
    resuming,
    stages,
    values,
)
from kedge.audit.properties.engines import Setting, engines_agree
from kedge.audit.properties.optimizers import takes_adam, takes_momentum
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD, Adam
from kedge.core.schedules import all_units
from kedge.core.selections import Selection, body, head


class Property(NamedTuple):
    """A property of methods, its test, and the condition for methods that it applies to."""

    name: str
    kind: Kind
    test: Callable[[Algorithm], Finding]
    applies: Callable[[Algorithm], bool] = lambda algorithm: True

    def check(self, algorithm: Algorithm) -> Finding:
        """The test's finding on a copy of `algorithm`."""
        return self.test(deepcopy(algorithm))


DECAYING = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
MOMENTUM = LocalTraining(2, 4, SGD(0.05, momentum=0.9, weight_decay=1e-2), clip=1.0)
# Adam divides by the size of the gradient. If the true gradient is 0, as for a convolution's bias before
# batch norm, this amplifies rounding. So Adam is tested without batch norm and with a larger eps.
ADAM = LocalTraining(2, 4, Adam(0.01, eps=1e-3, weight_decay=1e-2), clip=1.0)
PLAIN = LocalTraining(2, 4, SGD(0.1))
DROP_LAST = LocalTraining(3, 4, SGD(0.1), drop_last=True)

SETTINGS: dict[str, Setting] = {
    "batch norm": Setting(DECAYING),
    "no norm": Setting(DECAYING, partial(convolutional, norm="none")),
    "group norm": Setting(DECAYING, partial(convolutional, norm="group")),
    "local statistics": Setting(DECAYING, partial(convolutional, statistics="local")),
    "frozen statistics": Setting(DECAYING, partial(convolutional, statistics="frozen")),
    "dropout": Setting(PLAIN, partial(convolutional, dropout=0.4)),  # keyed by seed, round, client and step
    "short batches dropped": Setting(DROP_LAST, chunk=2),
    "short batches dropped, some clients": Setting(DROP_LAST, cohorts=SOME_CLIENTS, chunk=2),
    "one client, one sample": Setting(PLAIN, perceptron, (6,), sizes=(1,), cohorts=((0,),) * 3),
}


PARTS: dict[str, Selection] = {"body": body, "head": head}


def has_schedule(algorithm: Algorithm) -> bool:
    """Whether the method freezes units by its own schedule."""
    return algorithm.schedule is not all_units


def has_corrections(algorithm: Algorithm) -> bool:
    """Whether the method has corrections, so that there are hooks to call."""
    return bool(algorithm.corrections)


PROPERTIES: tuple[Property, ...] = (
    Property("two stages are one", "reduction", stages.two_stages_are_one),
    Property(
        "finite differences",
        "gradient",
        finite_differences.gradient_matches_slopes,
        finite_differences.has_objective,
    ),
    *(
        Property(f"engines agree: {name}", "engines", partial(engines_agree, setting=setting))
        for name, setting in SETTINGS.items()
    ),
    Property(
        "engines agree: momentum",
        "engines",
        partial(engines_agree, setting=Setting(MOMENTUM, cohorts=SOME_CLIENTS)),
        takes_momentum,
    ),
    Property(
        "engines agree: Adam",
        "engines",
        partial(engines_agree, setting=Setting(ADAM, perceptron, (6,))),
        takes_adam,
    ),
    *(
        Property(f"engines agree: only the {name} shared", "engines", partial(engines.part_shared, part=part))
        for name, part in PARTS.items()
    ),
    Property("chunks of the stack", "engines", engines.chunks_agree),
    Property("order of clients", "engines", engines.order_is_irrelevant),
    Property("frozen backbone", "engines", frozen_backbone.backbone_is_data),
    Property("precision of the state", "engines", engines.precision_is_kept),
    Property("units never opened", "frozen", frozen_units.closed_units_keep_their_bits),
    Property("units opened in the second round", "frozen", frozen_units.units_open_in_second_round),
    Property("no unit opened", "frozen", frozen_units.server_keeps_its_bits),
    Property("units opened late", "frozen", frozen_units.leaves_move_while_open, has_schedule),
    Property("stopped and resumed", "resume", resuming.resumed_run_is_equal),
    Property("pickle, hash, print", "value", values.is_value),
    Property("layout of hooks", "value", purity.hooks_keep_layout, has_corrections),
    Property("hooks modify nothing", "value", purity.hooks_modify_nothing, has_corrections),
    Property("memories start equal", "value", purity.memories_start_equal, has_corrections),
    Property("rounds modify nothing", "value", purity.rounds_modify_nothing),
)


# Finite differences do not apply to a method that detaches a part of its objective.
EXEMPT = {"fedrod": {"finite differences"}}


def property_checks(method: str, algorithm: Algorithm) -> list[Check]:
    """The properties that apply to `algorithm`, as checks of the audit."""
    return [
        Check(method, test.name, test.kind, partial(test.check, algorithm))
        for test in PROPERTIES
        if test.applies(algorithm) and test.name not in EXEMPT.get(method, ())
    ]
