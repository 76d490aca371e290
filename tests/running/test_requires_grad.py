"""Frozen parameters in runs: of factories, in costs, in packs, with every engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running.short_runs import distance, errors_of, experiment, members
from torch import nn

import kedge
from kedge.algorithms import fedavg, fedper, scaffold
from kedge.config.assemble import assemble
from kedge.config.imports import import_object
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.frozen import frozen_leaves
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation, federate
from kedge.engines.pack.pack import Pack
from kedge.measure.cost.macs import chain_macs
from kedge.nn.from_module import from_module, seeded
from kedge.running.execute import execute, resume
from kedge.running.recording.round_costs import predicted_lines

SOURCE = """
import torch
from torch import nn

def network(shape, classes, pretrained: bool = False):
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(shape[-1] * shape[-2], 9), nn.Tanh())
    if pretrained:
        weights = torch.linspace(-1, 1, 9 * 64).reshape(9, 64)
        backbone[1].load_state_dict({"weight": weights, "bias": torch.ones(9)})
    return nn.Sequential(*backbone.requires_grad_(False), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, classes))

def all_frozen(shape, classes):
    return network(shape, classes).requires_grad_(False)
"""
FROZEN = ("1.weight", "1.bias")


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


def settings(file: str, model: str = "network", **more: Any) -> dict[str, Any]:
    return {"model__name": f"{file}:{model}", "engine__name": "stacked", "engine__compile": "off", **more}


def built(file: str, seed: int) -> nn.Module:
    return seeded(lambda: import_object(f"{file}:network")((1, 8, 8), 10), seed)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_factory_s_frozen_weights_are_those_of_the_seed(seed: int, file: str, tmp_path: Path) -> None:
    result = execute(experiment(seed=seed, **settings(file)), tmp_path / "run")
    module = built(file, seed)
    assert all(torch.equal(result.model[k], module.state_dict()[k]) for k in FROZEN)
    assert not torch.equal(result.model["3.weight"], module.state_dict()["3.weight"])
    module.load_state_dict(result.model)
    again = resume(tmp_path / "run")  # at its end: the same models
    assert all(torch.equal(v, again.model[k]) for k, v in result.model.items())


def test_a_factory_whose_network_is_all_frozen_is_refused(file: str) -> None:
    for method in ("fedavg", "moon"):
        with pytest.raises(kedge.RequestError, match="all 6 parameters have requires_grad=False"):
            assemble(experiment(method=method, **settings(file, "all_frozen")))


@pytest.mark.parametrize("pretrained", [True, False])
def test_packed_runs_end_as_alone_with_their_own_frozen_weights(
    pretrained: bool, file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs with equal backbones train in one pack; a random backbone depends on the seed."""
    rounds: list[int] = []
    train = Pack.train_side_by_side

    def counting(self: Pack, asked: Sequence[Any]) -> Any:
        rounds.append(len(asked))
        return train(self, asked)

    monkeypatch.setattr(Pack, "train_side_by_side", counting)
    model = f"network(pretrained={str(pretrained).lower()})"
    own = settings(file) | {"engine__precision": "fp64", "rounds": 2, "method": "scaffold"}
    own["model"] = f"{file}:{model}"
    del own["model__name"]
    experiments = [experiment(seed=seed, **own) for seed in (1, 2)]
    assert errors_of(members(tmp_path / "packed", experiments)) == {"run0": None, "run1": None}
    assert rounds == ([2, 2] if pretrained else [])  # each on its own engine
    for number, one in enumerate(experiments):
        execute(one, tmp_path / f"alone{number}")
        assert distance(tmp_path / "packed" / f"run{number}", tmp_path / f"alone{number}") < 1e-12


def chain() -> nn.Sequential:
    """Three linear layers; the first and the bias of the second are frozen."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def federation() -> Federation:
    source = synthetic(60, 3, (6,))
    return federate(source, [torch.arange(10).numpy(), torch.arange(10, 22).numpy()])


WEIGHTS = (6 * 8, 8 * 5, 5 * 3)
TRAINED = 8 * 5 + 5 * 3 + 3


@pytest.mark.parametrize(
    ("algorithm", "sent"), [(fedavg(), TRAINED), (scaffold(), 2 * TRAINED), (fedper(), 8 * 5)]
)
def test_costs_leave_frozen_parameters_out(algorithm: Algorithm, sent: int) -> None:
    """By hand: forward through all layers, no gradient for or below frozen layers, four bytes per number."""
    stage = Stage(algorithm, 1, LocalTraining(epochs=2, batch=5, drop_last=True))
    (line,) = predicted_lines(Task((stage,), from_module(chain()), federation()))
    samples = 2 * (10 + 10)
    assert line["cost"] == {
        "parameters": TRAINED,
        "samples": samples,
        "updates": 2 * (2 + 2) * TRAINED,
        "macs": samples * chain_macs(WEIGHTS, [False, True, True]),
        "bytes_down": 2 * 4 * sent,
        "bytes_up": 2 * 4 * sent,
    }
    assert chain_macs(WEIGHTS, [False, True, True]) == (48 + 40 + 15) + (40 + 15) + 15


def test_a_run_s_costs_are_those_told_before() -> None:
    stage = Stage(fedavg(), 2, LocalTraining(1, 5))
    task = Task((stage,), from_module(chain()), federation())
    told = [line["cost"] for line in predicted_lines(task)]
    x, y = task.federation.pool.x, task.federation.pool.y
    clients = [kedge.Dataset(x[i], y[i]) for i in map(torch.from_numpy, task.federation.clients)]
    result = kedge.train(chain(), clients, rounds=2, batch=5, engine="stacked", compile="off")
    assert [line["cost"] for line in result.history] == told


def test_the_frozen_leaves_of_a_model_are_those_of_the_module() -> None:
    module = chain()
    leaves = frozen_leaves(from_module(module.double()))
    assert list(leaves) == ["0.weight", "0.bias", "2.bias"]
    assert all(torch.equal(v, module.state_dict()[k]) for k, v in leaves.items())
    assert frozen_leaves(from_module(chain().requires_grad_(True))) == {}
