"""Algorithms compare and print by their hyper-parameters, cannot be changed, and refuse bad arguments."""

from dataclasses import FrozenInstanceError, replace

import pytest
from tests.contract.algorithms import BUILT_IN

from kedge.algorithms import fedbug, feddyn, fedprox, scaffold
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD, Adam


def test_hyper_parameters_make_different_values() -> None:
    assert feddyn(0.1) == feddyn(0.1) != feddyn(0.2)
    assert "alpha=0.1" in repr(feddyn(0.1))
    assert "ratio=0.25" in repr(fedbug(scaffold(), 0.25))


def test_an_algorithm_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        BUILT_IN["fedavg"].name = "other"  # type: ignore[misc]  # that is the point


def test_two_corrections_of_one_slot_are_refused() -> None:
    both = (*feddyn(0.1).corrections, *feddyn(0.2).corrections)
    with pytest.raises(RequestError, match="share a slot"):
        replace(feddyn(0.1), corrections=both)


def test_bad_hyper_parameters_are_refused_with_a_reason() -> None:
    with pytest.raises(RequestError, match="need alpha > 0"):
        feddyn(0.0)
    with pytest.raises(RequestError, match="need mu ≥ 0"):
        fedprox(-1.0)
    with pytest.raises(RequestError, match="need 0 ≤ ratio ≤ 1"):
        fedbug(feddyn(), 1.5)


@pytest.mark.parametrize("method", [scaffold(), fedbug(scaffold())], ids=["scaffold", "fedbug+scaffold"])
def test_scaffold_refuses_momentum_and_adam(method: Algorithm) -> None:
    with pytest.raises(RequestError, match=r"momentum 0\.9.*allow_momentum"):
        Stage(method, 1, LocalTraining(optimizer=SGD(momentum=0.9)))
    with pytest.raises(RequestError, match="with Adam"):
        Stage(method, 1, LocalTraining(optimizer=Adam()))
    Stage(scaffold(allow_momentum=True), 1, LocalTraining(optimizer=SGD(momentum=0.9)))
