"""kedge.train: a user's own module and arrays."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kedge
from kedge.core.algorithm import Algorithm
from kedge.core.selections import body


class Net(nn.Module):
    """A user's network, written without a thought of kedge."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        logits: Tensor = self.last(self.drop(hidden))
        return logits


def dataset(seed: int, samples: int = 40) -> kedge.Dataset:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, samples)
    centers = np.random.default_rng(99).standard_normal((3, 6)) * 2
    return kedge.Dataset(centers[y] + draw.standard_normal((samples, 6)), y)


CLIENTS = [dataset(seed, 20 + 7 * seed) for seed in range(5)]
TEST = dataset(100, 200)


@pytest.mark.slow
def test_any_module_learns_and_is_left_untouched() -> None:
    module = Net()
    before = copy.deepcopy(module.state_dict())
    result = kedge.train(
        module, CLIENTS, test=TEST, method=kedge.fedbug(kedge.feddyn(alpha=0.1), ratio=0.4),
        rounds=15, per_round=3, epochs=3, batch=10, optimizer=kedge.SGD(lr=0.1, weight_decay=1e-3), seed=0,
    )  # fmt: skip
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert result.accuracy > 0.8
    assert result.method == "fedbug+feddyn"
    module.load_state_dict(result.model)  # every key, integer buffers too
    assert result.personal == {}


def test_training_starts_from_the_weights_given() -> None:
    module = Net()
    result = kedge.train(module, CLIENTS, rounds=1, optimizer=kedge.SGD(lr=1e-12), statistics="frozen")
    assert all(torch.allclose(v, module.state_dict()[k], atol=1e-6) for k, v in result.model.items())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbug(ratio=0.5)+feddyn(alpha=0.1)"])
def test_engines_give_the_same_run_in_double_precision(method: str) -> None:
    module = Net()
    results = [
        kedge.train(module, CLIENTS, test=TEST, method=method, rounds=3, epochs=2, batch=16, precision="fp64",
                    engine=engine, compile="off")
        for engine in ("sequential", "stacked")
    ]  # fmt: skip
    largest = max(float(v.abs().max()) for v in results[0].model.values())
    for k, v in results[0].model.items():
        assert float((v - results[1].model[k]).abs().max()) < 1e-12 * largest


def test_a_batch_larger_than_the_data_is_a_full_batch() -> None:
    module = nn.Sequential(nn.Linear(6, 3))
    big, exact = (
        kedge.train(module, CLIENTS[:1], rounds=2, batch=size, precision="fp64")
        for size in (1000, len(CLIENTS[0]))
    )
    assert all(torch.equal(v, exact.model[k]) for k, v in big.model.items())


def test_a_method_that_keeps_local_leaves_has_personal_models() -> None:
    method = Algorithm("shared-body", shared=body)
    result = kedge.train(Net(), CLIENTS, local_tests=CLIENTS, method=method, rounds=3, per_round=2)
    assert set(result.personal) == set(range(5))
    heads = [result.personal[c]["last.weight"] for c in range(5)]
    assert not torch.equal(heads[0], heads[1]) or not torch.equal(heads[1], heads[2])
    assert all(
        torch.equal(result.personal[c]["first.weight"], result.model["first.weight"]) for c in range(5)
    )
    assert "personal.local.accuracy" in result.history[-1]
    assert 0 <= result.accuracy <= 1  # on local tests, for there is no common one


@pytest.mark.slow
def test_a_run_in_a_folder_goes_on_with_the_same_call(tmp_path: Path) -> None:
    def call(rounds: int, out: Path, resume: bool = False) -> kedge.Result:
        return kedge.train(Net(), CLIENTS, test=TEST, method="feddyn", rounds=rounds, out=out, resume=resume,
                           checkpoint_every=2, engine="sequential")  # fmt: skip

    torch.manual_seed(0)
    call(4, tmp_path / "run")
    with pytest.raises(kedge.RequestError, match="exists already"):
        call(4, tmp_path / "run")
    torch.manual_seed(0)
    longer = call(6, tmp_path / "run", resume=True)
    torch.manual_seed(0)
    whole = call(6, tmp_path / "whole")
    assert [line["round"] for line in longer.history] == [1, 2, 3, 4, 5, 6]
    assert all(torch.equal(v, whole.model[k]) for k, v in longer.model.items())


def test_wrong_calls_say_why() -> None:
    with pytest.raises(kedge.RequestError, match="clients is empty"):
        kedge.train(Net(), [])
    with pytest.raises(kedge.RequestError, match="local_tests has 1 datasets for 5 clients"):
        kedge.train(Net(), CLIENTS, local_tests=[TEST])
    with pytest.raises(kedge.RequestError, match="resume=True needs out"):
        kedge.train(Net(), CLIENTS, resume=True)
    with pytest.raises(kedge.RequestError, match=r"scaffold with momentum 0\.9"):
        kedge.train(Net(), CLIENTS, method=kedge.scaffold(), optimizer=kedge.SGD(momentum=0.9))
    with pytest.raises(kedge.RequestError, match="scaffold with Adam"):
        kedge.train(Net(), CLIENTS, method=kedge.scaffold(), optimizer=kedge.Adam())
    with pytest.raises(kedge.RequestError, match="no parameters"):
        kedge.train(nn.Flatten(), CLIENTS)
    with pytest.raises(kedge.RequestError, match="per_round = 6: there are only 5 clients"):
        kedge.train(Net(), CLIENTS, per_round=6)
    with pytest.raises(kedge.RequestError, match="no test data"):
        _ = kedge.train(Net(), CLIENTS, rounds=1).accuracy
