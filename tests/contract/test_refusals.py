"""Experiments that make no sense raise an error with a reason, in any stage, before anything runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract.composing import LOCAL, combine, for_a_stage
from tests.contract.problem import IMAGE, network
from torch import nn

import kedge
from kedge.algorithms import METHOD_REGISTRY, fedavg, fedbabu, feddyn, fedprox, moon, scaffold
from kedge.config.assemble import assemble
from kedge.config.checks import check_schedules
from kedge.config.experiment import resolve
from kedge.config.stages import adapted_model, common_rebuild
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.errors import RequestError
from kedge.core.schedules import Clock, Mask, combined
from kedge.data.dataset import Dataset
from kedge.nn.from_module import from_module, seeded

THREE_UNITS = {"name": "mlp", "hidden": [6, 5]}
MOMENTUM = {"optimizer": {"name": "sgd", "momentum": 0.9}}
ADAM = {"optimizer": {"name": "adam"}}


def refusal(method: str, **settings: Any) -> str | None:
    """The error of an experiment of ten rounds with `method`, when it is assembled; None without an error."""
    table = {"name": "refused", "rounds": 10, "model": THREE_UNITS, "method": method, **settings}
    try:
        assemble(resolve({**table, "engine": {"device": "cpu"}}))
    except RequestError as error:
        return str(error)
    return None


CONTROL = "its control variates presume plain SGD. Set momentum to 0, or allow_momentum = true"
HEAD = "its schedule never trains the head, which the method must train. Use another"
PARTED = "the last {} units cannot be separated from a model of 3: give a number from 1 to 2."
SENSELESS: dict[str, tuple[str, dict[str, Any], str]] = {
    "scaffold with momentum": ("scaffold", MOMENTUM, f"scaffold with momentum 0.9: {CONTROL}"),
    "fedpvr with momentum": ("fedpvr", MOMENTUM, f"fedpvr with momentum 0.9: {CONTROL}"),
    "feddc with momentum": ("feddc", MOMENTUM, "plain SGD steps. Use optimizer sgd with momentum 0."),
    "scaffold with Adam": ("scaffold", ADAM, "scaffold with Adam: its control variates are gradients"),
    "fednova with Adam": ("fednova", ADAM, "fednova with Adam: a_i, the weight of a client"),
    "fedrod with a fixed head": ("fix-last+fedrod", {}, f"fix-last+fedrod: {HEAD}"),
    "fedrod with two fixed units": ("fix-last-two+fedrod", {}, f"fix-last-two+fedrod: {HEAD}"),
    "two fixed units of two": (
        "fix-last-two+fedavg",
        {"model": {"name": "mlp", "hidden": [6]}},
        "the model has 2 units, so none would ever train. Use a model of more units, or a smaller count.",
    ),
    "too many rounds of thaw": (
        "vanilla(thaw=[0, 1, 2])+fedavg",
        {},
        "thaw = [0, 1, 2]: 3 rounds, but the model has 2 base units (3 units, the last of which is the head)",
    ),
    "too few rounds of thaw": ("anti(thaw=[0])+feddyn", {}, "thaw = [0]: 1 rounds, but the model has 2 base"),
    "thaw for another network": (
        "vanilla(thaw=[0, 1])+moon(projection=4)",
        {},
        "thaw = [0, 1]: 2 rounds, but the model has 4 base units",
    ),
    "thaw that freezes again": ("vanilla(thaw=[2, 1])+fedavg", {}, "from 0 on, in ascending order"),
    "fedper without a head": ("fedper(head=0)", {}, f"fedper: {PARTED.format(0)}"),
    "fedper without a base": ("fedper(head=3)", {}, f"fedper: {PARTED.format(3)}"),
    "fedrep without a base": ("fedrep(head=3)", {}, f"fedrep: {PARTED.format(3)}"),
    "lg-fedavg that shares nothing": ("lg-fedavg(layers=0)", {}, f"lg-fedavg: {PARTED.format(0)}"),
    "lg-fedavg that keeps nothing": ("lg-fedavg(layers=3)", {}, f"lg-fedavg: {PARTED.format(3)}"),
    "fedpvr on all units": ("fedpvr(last=3)", {}, f"fedpvr: {PARTED.format(3)}"),
    "fedpvr on none": ("fedpvr(last=0)", {}, "fedpvr(last=0): need a whole number of at least 1"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "settings", "reason"), SENSELESS.values(), ids=SENSELESS)
def test_what_makes_no_sense_is_refused_with_a_reason(
    method: str, settings: dict[str, Any], reason: str
) -> None:
    assert reason in str(refusal(method, **settings))


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [pytest.param(*case, id=name) for name, case in SENSELESS.items() if "moon" not in case[0]],
)
def test_a_later_stage_that_makes_no_sense_is_refused_before_the_first_runs(
    method: str, settings: dict[str, Any], reason: str
) -> None:
    assert reason in str(refusal(f"fedavg -> {method}@0.8", **settings))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [(MOMENTUM, {"scaffold", "fedpvr", "feddc"}), (ADAM, {"scaffold", "fedpvr", "feddc", "fednova"})],
    ids=["momentum", "Adam"],
)
def test_exactly_the_methods_that_presume_plain_sgd_refuse_another_optimizer(
    settings: dict[str, Any], refused: set[str]
) -> None:
    assert {method for method in METHOD_REGISTRY if refusal(method, **settings)} == refused


@pytest.mark.parametrize("method", ["moon -> fedavg", "feddyn -> moon", "moon(projection=4) -> moon"])
def test_stages_that_train_different_networks_are_refused(method: str) -> None:
    reason = str(refusal(method))
    assert reason.startswith(
        method.replace("(projection=4)", "") + ": these methods train different networks"
    )
    assert "projection = 0 keeps the network as it is" in reason
    assert refusal(method.replace("moon", "moon(projection=0)").replace("(projection=4)", "")) is None


def test_proposition_1_is_refused_after_any_method_that_is_not_feddyn() -> None:
    reasons = {method: refusal(f"{method} -> fedavg@proposition1") for method in METHOD_REGISTRY}
    assert {method for method, reason in reasons.items() if reason is None} == {"feddyn", "feddyn-no-h"}
    for method, reason in reasons.items():
        if reason:
            assert reason.startswith(
                f"proposition1 is about FedDyn: {method} has neither h nor g_k. Use plateau"
            )


def without_classifier() -> nn.Module:
    """Convolutions and a mean over the remaining image, without a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@pytest.fixture(scope="module")
def clients() -> list[Dataset]:
    drawn = torch.Generator().manual_seed(0)
    return [Dataset(torch.randn(4, *IMAGE, generator=drawn), torch.arange(4) % 3) for _ in range(2)]


def test_exactly_the_methods_about_features_refuse_a_network_without_a_classifier(
    clients: list[Dataset],
) -> None:
    reasons = {}
    for method in METHOD_REGISTRY:
        try:
            kedge.train(
                without_classifier(), clients, method=method, rounds=1, engine="sequential", progress=False
            )
        except RequestError as error:
            reasons[method] = str(error)
    assert set(reasons) == {"feddecorr", "moon", "fedtr", "fedrod"}
    for method, reason in reasons.items():
        assert reason.startswith(f"{method} needs features: ")
        assert "has no linear layer" in reason


@pytest.mark.parametrize("second", [moon(projection=0), *map(for_a_stage, ("feddecorr", "fedtr", "fedrod"))])
def test_features_that_a_later_stage_lacks_are_missed_before_the_first_runs(second: Algorithm) -> None:
    stages = [Stage(fedavg(), 1, LOCAL), Stage(second, 1, LOCAL)]
    rebuild = common_rebuild(stages)
    plain = from_module(seeded(lambda: rebuild(without_classifier()), 0))
    with pytest.raises(RequestError, match=f"^{second.name} needs features: the model has no linear layer"):
        check_schedules(stages, adapted_model(plain, stages))


def one_flag_less(clock: Clock, units: int) -> Mask:
    return (True,) * (units - 1)


def one_flag_more(clock: Clock, units: int) -> Mask:
    return (True,) * (units + 1)


@pytest.mark.parametrize(("wrong", "flags"), [(one_flag_less, 2), (one_flag_more, 4)])
@pytest.mark.parametrize("base", [fedavg(), fedbabu()], ids=lambda a: a.name)
def test_a_schedule_must_give_one_flag_a_unit(
    base: Algorithm, wrong: Callable[[Clock, int], Mask], flags: int
) -> None:
    """Also if the schedule is applied over the method's own schedule."""
    algorithm = replace(base, schedule=combined(base.schedule, wrong))
    message = f"schedule returns {flags} flags for a model of 3 units"
    with pytest.raises(RequestError, match=message):
        check_schedules([Stage(algorithm, 1, LOCAL)], network("batch"))


@pytest.mark.parametrize(
    ("methods", "slot"),
    [
        ((feddyn(0.1), feddyn(0.2)), "dynamic"),
        ((scaffold(), for_a_stage("fedpvr")), "control"),
        ((fedprox(1.0), feddyn(), fedprox(2.0)), "proximal"),
    ],
)
def test_two_corrections_in_one_slot_are_refused(methods: tuple[Algorithm, ...], slot: str) -> None:
    with pytest.raises(RequestError, match=f"two corrections share a slot: .*'{slot}'.*'{slot}'"):
        combine(*methods)
