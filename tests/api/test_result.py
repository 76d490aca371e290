"""The result of a run: every cell of the evaluation matrix, and models that load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import kedge

DRAW = torch.Generator().manual_seed(0)
CLIENTS = [
    kedge.Dataset(torch.randn(n, 6, generator=DRAW), torch.randint(0, 3, (n,), generator=DRAW))
    for n in (9, 5, 7, 8)
]
SMALL: dict[str, Any] = {
    "rounds": 4, "model.name": "mlp", "training.epochs": 1, "engine.name": "sequential",
    "partition.clients": 6, "participation.per_round": 3, "progress": False,
}  # fmt: skip


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def trained(module: nn.Module, **settings: Any) -> kedge.Result:
    given = {"test": CLIENTS[0], "local_tests": CLIENTS, "rounds": 3, "engine": "sequential", **settings}
    return kedge.train(module, CLIENTS, **given)


def test_every_cell_is_read_with_last_and_best() -> None:
    result = kedge.run("quickstart", **SMALL)
    values = [line["distributed.global.accuracy"] for line in result.history]
    found = result.metric("distributed.global.accuracy")
    assert (found.last, found.last_round) == (values[-1], 4) == (result.accuracy, 4)
    assert (found.best_round, found.best) == (values.index(max(values)) + 1, max(values)) == result.best
    losses = [line["average.local.loss"] for line in result.history]
    assert result.metric("average.local.loss").best == min(losses)
    assert {"distributed.global.accuracy", "personal.local.loss"} <= set(result.cells)
    assert "train.loss" not in result.cells


@pytest.mark.slow
def test_a_cell_that_is_not_measured_in_every_evaluation_says_of_which_round_it_is() -> None:
    settings = {**SMALL, "evaluation.tune": "all", "evaluation.tune_every": 2, "evaluation.tune_epochs": 1}
    result = kedge.run("quickstart", **{**settings, "participation.per_round": 5})
    assert result.metric("personal.local.accuracy.tuned").last_round == 4
    tuned = [line["round"] for line in result.history if "personal.local.accuracy.tuned" in line]
    assert tuned == [2, 4]
    unseen = [line["round"] for line in result.history if "personal.local.accuracy.unseen" in line]
    assert result.metric("personal.local.accuracy.unseen").last_round == unseen[-1] < 4


def test_an_unknown_cell_names_those_there_are() -> None:
    result = trained(network(), local_tests=None)
    with pytest.raises(
        kedge.RequestError, match=r"distributed\.global\.acc'.*Did you mean.*It has: .*average"
    ):
        result.metric("distributed.global.acc")
    with pytest.raises(kedge.RequestError, match=r"train\.loss"):
        result.metric("train.loss")
    bare = trained(network(), test=None, local_tests=None)
    with pytest.raises(kedge.RequestError, match="give a common test set or local tests"):
        bare.metric("distributed.global.accuracy")


def test_train_measures_the_all_model_and_headlines_as_asked() -> None:
    """With all clients in every round, all of one size, the mean of all last models is the average."""
    same = [kedge.Dataset(one.x[:5], one.y[:5]) for one in CLIENTS]
    result = kedge.train(network(), same, test=CLIENTS[0], all=True, rounds=2, precision="fp64")
    for kind in ("accuracy", "loss"):
        found = result.metric(f"all.global.{kind}").last
        assert found == pytest.approx(result.metric(f"average.global.{kind}").last, rel=1e-12)
    assert "all.global.accuracy" not in trained(network()).cells
    one = trained(network(), method="fedper", per_round=1, rounds=1, headline="seen").history[-1]
    assert one["personal.local.loss"] == one["personal.local.loss.seen"] != one["personal.local.loss.unseen"]


def test_a_method_that_changes_the_network_gives_the_changed_network_s_model() -> None:
    module, method = network(), kedge.moon(projection=7)
    result = trained(module, method=method)
    changed = method.rebuild(module)
    changed.load_state_dict(result.model)
    with torch.no_grad():
        right = changed.eval()(CLIENTS[0].x).argmax(1) == CLIENTS[0].y
    assert float(right.double().mean()) == pytest.approx(result.accuracy)
    with pytest.raises(RuntimeError, match="projection"):
        module.load_state_dict(result.model)
    assert "rebuild" in (kedge.Result.__doc__ or "")


def test_heads_that_a_method_adds_stand_in_the_personal_models_only(tmp_path: Path) -> None:
    module = network()
    result = trained(module, method=kedge.fedrod(), out=tmp_path / "run")
    module.load_state_dict(result.model)
    assert set(load_file(tmp_path / "run/model.safetensors")) == set(result.model)
    assert set(result.personal) == {0, 1, 2, 3}
    assert {"personal.weight", "personal.bias"} == set(result.personal[0]) - set(result.model)


@pytest.mark.parametrize("method", ["fedper", "fedrod", "lg-fedavg"])
def test_models_have_one_precision(method: str) -> None:
    result = trained(network(), method=method, precision="fp64")
    for model in (result.model, *result.personal.values()):
        assert {v.dtype for v in model.values()} == {torch.float64}


def test_the_model_after_a_switch_is_the_one_that_was_measured(tmp_path: Path) -> None:
    """FedPer's common head is the one FedAvg ended with, not the first one."""
    out = tmp_path / "run"
    result = kedge.run("quickstart", out=out, method="fedavg -> fedper@0.5", **SMALL)
    saved = load_file(out / "model.safetensors")
    assert saved.keys() == result.model.keys()
    assert all(torch.equal(saved[k], v) for k, v in result.model.items())
    first = kedge.run("quickstart", method="fedavg", **{**SMALL, "rounds": 2}).model
    name = list(result.model)[-1]
    assert torch.equal(result.model[name], first[name])
    assert result.method == "fedper"


def test_statistics_of_one_s_own_make_personal_models() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    own = trained(module, statistics="local", batch=4, drop_last=True).personal
    assert set(own) == {0, 1, 2, 3}
    assert not torch.equal(own[0]["1.running_mean"], own[1]["1.running_mean"])
    module.load_state_dict(own[0])
    assert trained(module).personal == {}
