"""Methods and schedules by name, a user's own among them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kedge
from kedge.core.errors import RequestError
from kedge.core.schedules import Clock

SMALL: dict[str, Any] = {
    "rounds": 2,
    "partition.clients": 4,
    "participation.per_round": 2,
    "training.epochs": 1,
}
SOURCE = """
from kedge.core.algorithm import Algorithm
from kedge.algorithms.fedbug import BottomUp
from kedge.core.schedules import Schedule
from kedge import fedprox

def one_more_a_round(clock, units):
    return [unit <= clock.round for unit in range(units)]

def too_short(clock, units):
    return [True]

def slowly(ratio: float = 0.9) -> Schedule:
    return BottomUp(ratio)

def near(mu: float = 0.5) -> Algorithm:
    return fedprox(mu)

CALM = fedprox(0.1)

def unsaid(a=1):
    return fedprox(a)

def liar() -> Algorithm:
    return 3

number = 3

def network(shape, classes, width: int = 8):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1] * shape[-2], width), nn.Linear(width, classes))

def ready():
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


def last_unit_trains(clock: Clock, units: int) -> list[bool]:
    return [unit == units - 1 for unit in range(units)]


def test_a_plain_function_is_a_schedule_of_any_method() -> None:
    torch.manual_seed(0)
    clients = [kedge.Dataset(torch.randn(12, 5) + k, torch.full((12,), k)) for k in range(2)]
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    for base in (kedge.fedavg(), kedge.feddyn(), kedge.scaffold()):
        method = kedge.scheduled(base, last_unit_trains)
        assert method.name == f"last_unit_trains+{base.name}"
        model = kedge.train(module, clients, method=method, rounds=2, batch=5).model
        assert torch.equal(model["0.weight"], module.state_dict()["0.weight"])
        assert not torch.equal(model["2.weight"], module.state_dict()["2.weight"])


def test_a_schedule_over_a_method_with_one_of_its_own_opens_what_both_open() -> None:
    clients = [kedge.Dataset(torch.randn(12, 5), torch.arange(12) % 2)]
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    method = kedge.scheduled(kedge.fedbabu(), last_unit_trains)  # FedBABU never trains it
    model = kedge.train(module, clients, method=method, rounds=2, batch=5).model
    assert all(torch.equal(v, model[k]) for k, v in module.state_dict().items())


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("{}:one_more_a_round + feddyn", "one_more_a_round+feddyn"),
        ("{}:slowly(ratio=0.5) + fedavg", "slowly+fedavg"),
        ("{}:near(mu=0.2)", "near"),
        ("{}:one_more_a_round + {}:near", "one_more_a_round+near"),
        ("{}:CALM", "CALM"),
    ],
)
def test_what_a_user_names_in_a_file_runs(method: str, label: str, file: str, tmp_path: Path) -> None:
    result = kedge.run("quickstart", method=method.replace("{}", file), out=tmp_path / "run", **SMALL)
    assert len(result.history) == 2
    assert (
        kedge.run(tmp_path / "run/config.toml").history[-1]["train.loss"] == result.history[-1]["train.loss"]
    )
    assert label.split("+")[-1] in (tmp_path / "run/config.toml").read_text()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("{}:too_short + fedavg", "too_short returns 1 flags for a model of 4 units: need one flag"),
        ("{}:unsaid", "is it a method or a schedule"),
        ("{}:number", "is it a method or a schedule"),
        ("{}:liar", "it returns a int, not an Algorithm"),
        ("{}:near(nu=1)", "unknown key method.nu"),
        ("{}:nearr", "has no 'nearr'"),
        ("nowhere.py:near", "no such file"),
        ("{}:one_more_a_round + fedbug", "it names two schedules"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(method: str, message: str, file: str) -> None:
    with pytest.raises(RequestError, match=message):
        kedge.run("quickstart", method=method.replace("{}", file), **SMALL)


@pytest.mark.parametrize(("model", "leaves"), [("network", 4), ("network(width=3)", 4), ("ready", 2)])
def test_a_network_of_ones_own_is_named_in_a_file(model: str, leaves: int, file: str) -> None:
    result = kedge.run("quickstart", model=f"{file}:{model}", **SMALL)
    assert len(result.model) == leaves
    if "width" in model:
        assert result.model["1.weight"].shape == (3, 64)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("network(depth=3)", "unknown key model.depth"),
        ("number", "it is a int, not a function"),
        ("near", "it returns a Algorithm, not an nn.Module"),
    ],
)
def test_what_is_no_network_is_refused(model: str, message: str, file: str) -> None:
    with pytest.raises(RequestError, match=message):
        kedge.run("quickstart", model=f"{file}:{model}", **SMALL)
