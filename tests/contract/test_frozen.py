"""Frozen leaves are bit-identical: no gradient, no weight decay, no momentum, no server rule."""

from dataclasses import replace

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS, BUILT_IN, NO_MOMENTUM
from tests.contract.problem import EVERYBODY, SOME, federation, network, perceptron, play

from kedge.audit.properties.agreement import never_opened, opened_late, second_unit
from kedge.core.algorithm import LocalTraining
from kedge.core.optimizers import SGD, Adam
from kedge.core.schedules import Clock, Mask
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked

BUGS = [name for name in ALGORITHMS if name.startswith("fedbug")]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_units_that_never_open_keep_every_bit_on_server_and_clients(name: str) -> None:
    finding = never_opened(ALGORITHMS[name], 0.0 if name in NO_MOMENTUM else 0.9)
    assert finding.passed, finding.detail


@pytest.mark.parametrize("name", BUGS)
def test_fedbug_leaves_units_untouched_until_they_open(name: str) -> None:
    finding = opened_late(ALGORITHMS[name])
    assert finding.passed, finding.detail


def by_round(clock: Clock, units: int) -> Mask:
    """The first unit trains in round 0, all units from then on."""
    return tuple(unit == 0 or clock.round > 0 for unit in range(units))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_a_unit_that_opens_in_a_later_round_starts_from_its_first_bits(
    name: str, kind: type[Sequential] | type[Stacked]
) -> None:
    algorithm, data = replace(ALGORITHMS[name], schedule=by_round), federation()
    model = network("batch", of=algorithm)
    start = {k: v.double() for k, v in model.init(0)[0].items()}
    for rounds in (1, 2):
        engine = kind(model, data)
        local = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2))
        server = play(algorithm, local, engine, model, data, EVERYBODY[:rounds])
        kept = {k for k, v in server.shared.items() if torch.equal(v, start[k])}
        closed = {k for unit in model.units[1:] for k in unit} & set(server.shared)
        assert kept == (closed if rounds == 1 else set())


def test_nothing_moves_when_nothing_trains() -> None:
    data = federation()
    for kind in (Sequential, Stacked):
        for algorithm in ALGORITHMS.values():
            frozen, model = replace(algorithm, schedule=no_unit), network("none", of=algorithm)
            start = model.init(0)[0]
            local = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2))
            server = play(frozen, local, kind(model, data), model, data, SOME)
            assert all(torch.equal(v, start[k].double()) for k, v in server.shared.items())


def no_unit(clock: Clock, units: int) -> Mask:
    return (False,) * units


def test_adam_leaves_frozen_units_alone() -> None:
    model, data = perceptron(), federation()
    algorithm = replace(BUILT_IN["feddyn"], schedule=second_unit)
    start = model.init(0)[0]
    for kind in (Sequential, Stacked):
        local = LocalTraining(2, 4, Adam(0.01, weight_decay=1e-2))
        shared = play(algorithm, local, kind(model, data), model, data, EVERYBODY).shared
        moved = {k for k, v in shared.items() if not torch.equal(v, start[k].double())}
        assert moved == set(model.units[1])
