"""The registry of methods and schedules: one file, one row below, and one text in texts/ for each.

The configuration, the exports of `kedge`, `kedge list`, the audit, the contract tests, the README's table
and the pages in docs/methods derive from the two tables.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kedge.algorithms.every_unit import every_unit as every_unit
from kedge.algorithms.fedadam import fedadam as fedadam
from kedge.algorithms.fedavg import fedavg as fedavg
from kedge.algorithms.fedavgm import fedavgm as fedavgm
from kedge.algorithms.fedbabu import fedbabu as fedbabu
from kedge.algorithms.fedbug import bottom_up as bottom_up
from kedge.algorithms.fedbug import fedbug as fedbug
from kedge.algorithms.feddc import feddc as feddc
from kedge.algorithms.feddecorr import feddecorr as feddecorr
from kedge.algorithms.feddyn import feddyn as feddyn
from kedge.algorithms.feddyn_ablations import feddyn_no_h as feddyn_no_h
from kedge.algorithms.feddyn_ablations import feddyn_no_reg as feddyn_no_reg
from kedge.algorithms.fedexp import fedexp as fedexp
from kedge.algorithms.fednova import fednova as fednova
from kedge.algorithms.fedntd import fedntd as fedntd
from kedge.algorithms.fedper import fedper as fedper
from kedge.algorithms.fedprox import fedprox as fedprox
from kedge.algorithms.fedpvr import fedpvr as fedpvr
from kedge.algorithms.fedrep import fedrep as fedrep
from kedge.algorithms.fedrod import fedrod as fedrod
from kedge.algorithms.fedtr import fedtr as fedtr
from kedge.algorithms.fix_last import fix_last as fix_last
from kedge.algorithms.fix_last import fix_last_two as fix_last_two
from kedge.algorithms.layer_expansion import anti as anti
from kedge.algorithms.layer_expansion import vanilla as vanilla
from kedge.algorithms.lg_fedavg import lg_fedavg as lg_fedavg
from kedge.algorithms.moon import moon as moon
from kedge.algorithms.scaffold import scaffold as scaffold
from kedge.algorithms.scheduled import scheduled as scheduled
from kedge.algorithms.top_down import top_down as top_down
from kedge.core.algorithm import Algorithm, with_schedule
from kedge.core.schedules import Schedule

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class MethodEntry:
    """A method's factory, and the arguments with which the audit and the contract tests call it."""

    factory: Callable[..., Algorithm]
    # Name of a variant -> arguments; "" is the method itself.
    examples: Mapping[str, Arguments] = field(default_factory=lambda: {"": {}})


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule's factory, and its example for the audit and the contract tests."""

    factory: Callable[..., Schedule]
    example: Arguments = field(default_factory=dict)  # arguments of the factory
    methods: tuple[str, ...] = ()  # the methods that run under this schedule


METHOD_REGISTRY: dict[str, MethodEntry] = {
    "fedavg": MethodEntry(fedavg),
    "fedprox": MethodEntry(fedprox, {"": {"mu": 0.1}}),
    "feddyn": MethodEntry(feddyn, {"": {"alpha": 0.1}, "data": {"alpha": 0.1, "scaling": "data"}}),
    "feddyn-no-reg": MethodEntry(feddyn_no_reg),
    "feddyn-no-h": MethodEntry(feddyn_no_h, {"": {"alpha": 0.1}}),
    "feddc": MethodEntry(feddc, {"": {"alpha": 0.1}}),
    # At 0.5, the audit's small batches amplify a rounding of 1e-15 to 5e-9, even on a single engine.
    "feddecorr": MethodEntry(feddecorr, {"": {"beta": 0.1}}),
    "fedntd": MethodEntry(fedntd, {"": {"beta": 0.7, "temperature": 2.0}}),
    "moon": MethodEntry(moon, {"": {"mu": 0.7, "projection": 0}, "projection": {"mu": 0.7, "projection": 4}}),
    "fedtr": MethodEntry(
        fedtr,
        {
            "": {"strength_features": 0.7, "strength_drift": 0.3, "drift_rate": 0.2},
            "proof": {"strength_features": 0.7, "strength_drift": 0.3, "drift": "accumulate"},
            "features": {"strength_features": 0.7, "strength_drift": 0.0},
            "drift": {"strength_features": 0.0, "strength_drift": 0.3, "drift_rate": 0.2},
        },
    ),
    "scaffold": MethodEntry(scaffold),
    "fedpvr": MethodEntry(fedpvr),
    # With these arguments, server momentum and server Adam converge within the rounds of the audit.
    "fedavgm": MethodEntry(fedavgm, {"": {"beta": 0.5}}),
    "fedadam": MethodEntry(fedadam, {"": {"lr": 0.7, "beta1": 0.5, "beta2": 0.9, "tau": 0.5}}),
    "fedexp": MethodEntry(fedexp, {"": {"epsilon": 0.2}}),
    "fednova": MethodEntry(fednova),
    "fedper": MethodEntry(fedper),
    "lg-fedavg": MethodEntry(lg_fedavg),
    "fedrep": MethodEntry(fedrep),
    "fedrod": MethodEntry(fedrod),
    "fedbabu": MethodEntry(fedbabu),
}

SCHEDULE_REGISTRY: dict[str, ScheduleEntry] = {
    "all": ScheduleEntry(every_unit),
    "fedbug": ScheduleEntry(
        bottom_up, {"ratio": 0.8}, ("fedavg", "fedprox", "feddyn", "scaffold", "fednova")
    ),
    "top-down": ScheduleEntry(top_down, {"ratio": 0.8}, ("fedavg",)),
    "fix-last": ScheduleEntry(fix_last),
    "fix-last-two": ScheduleEntry(fix_last_two),
    "vanilla": ScheduleEntry(vanilla, {"thaw": (0, 2)}, ("fedbabu",)),
    "anti": ScheduleEntry(anti, {"thaw": (0, 2)}),
}

METHOD_FACTORIES = {name: entry.factory for name, entry in METHOD_REGISTRY.items()}
SCHEDULE_FACTORIES = {name: entry.factory for name, entry in SCHEDULE_REGISTRY.items()}


def examples() -> Iterator[tuple[str, Algorithm]]:
    """Names and algorithms of the registry's examples: feddyn, feddyn(data), …, fedbug+fedavg, …"""
    for name, method in METHOD_REGISTRY.items():
        for variant, arguments in method.examples.items():
            yield f"{name}({variant})" if variant else name, method.factory(**arguments)
    for name, schedule in SCHEDULE_REGISTRY.items():
        for method_name in schedule.methods:
            method = METHOD_REGISTRY[method_name]
            base, label = method.factory(**method.examples[""]), f"{name}+{method_name}"
            yield label, with_schedule(base, schedule.factory(**schedule.example), label)


def method_factories() -> dict[str, Callable[..., Algorithm]]:
    """The factories of all methods by function name: "lg_fedavg", not "lg-fedavg"."""
    return {entry.factory.__name__: entry.factory for entry in METHOD_REGISTRY.values()}
