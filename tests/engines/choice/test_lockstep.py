"""The time that a stack waits for its longest client, and the choice of `auto` then."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

import kedge
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.data.federation import Federation, federation_from_datasets
from kedge.engines.choice import trial
from kedge.engines.choice.choose import Choice, choose
from kedge.engines.choice.lockstep import expected_longest, steps_of_round
from kedge.engines.choice.trial import Work
from kedge.engines.stack.stacked import Stacked
from kedge.nn.from_module import from_module


def federation(*sizes: int) -> Federation:
    return federation_from_datasets(
        [kedge.Dataset(torch.randn(n, 4), torch.arange(n) % 2) for n in sizes], None
    )


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_the_expected_longest_is_the_mean_over_all_subsets(count: int) -> None:
    steps = np.array([7, 1, 3, 3, 20])
    right = np.mean([max(some) for some in combinations(steps, count)])
    assert expected_longest(steps, count) == pytest.approx(right)


def test_more_runs_than_clients_have_all_of_them() -> None:
    assert expected_longest(np.array([2, 9]), 5) == 9


def test_a_stack_goes_on_until_its_longest_client_is_done() -> None:
    data, stage = federation(100, 10, 10, 10), Stage(kedge.fedavg(), 1, LocalTraining(2, 10, SGD()))
    whole = steps_of_round(data, stage, 4, 4)
    assert (whole.total, whole.lockstep, whole.idle) == (26, 20, 80 / 26)
    halves = steps_of_round(data, stage, 4, 2)
    assert halves.lockstep == pytest.approx(2 * (20 / 2 + 2 / 2))
    even = steps_of_round(federation(30, 30), stage, 2, 2)
    assert (even.total, even.lockstep, even.idle) == (12, 6, 1)


def chosen(data: Federation, monkeypatch: pytest.MonkeyPatch) -> Choice:
    """The choice if a step of the stack takes a third of the time of its clients one by one."""
    monkeypatch.setattr(trial, "timed", lambda engine, *rest: 1.0 if isinstance(engine, Stacked) else 3.0)
    model = from_module(nn.Linear(4, 2))
    return choose(Work(model, data, Stage(kedge.fedavg(), 1, LocalTraining(1, 10, SGD())), 4, 1))


def test_auto_does_not_stack_clients_that_would_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(federation(40, 40, 40, 40), monkeypatch).name == "stacked"
    ragged = chosen(federation(1000, 20, 20, 20), monkeypatch)
    assert ragged.name == "sequential"
    assert "a stack waits for its longest client: it takes 3.8 times the clients' steps" in ragged.reason
