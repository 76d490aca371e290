"""Modules that torch cannot run as a stack: `auto` chooses sequential, `stacked` names an engine for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kedge
from kedge.core.errors import Diverged
from kedge.engines.choice.unstackable import unstackable


def dataset(seed: int) -> kedge.Dataset:
    draw = np.random.default_rng(seed)
    return kedge.Dataset(draw.standard_normal((8, 4)), draw.integers(0, 3, 8))


CLIENTS = [dataset(seed) for seed in range(3)]


class Net(nn.Module):
    """A function of the user's own between two layers."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.function, self.first, self.last = function, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.function(self.first(x), self.training))
        return logits


def judged(x: Tensor) -> Tensor:
    return x if x.mean().item() > 0 else 2 * x


MODULES: dict[str, tuple[Callable[[Tensor, bool], Tensor], str]] = {
    "value": (lambda x, _: judged(x), "it reads a tensor's value"),
    "value in evaluation": (lambda x, train: x if train else judged(x), "it reads a tensor's value"),
    "shape": (lambda x, _: x + x[x > 0].mean(), "batching operators that can support dynamic shape"),
    "operator": (lambda x, _: x + torch.unique(x.detach()).mean(), "the operator aten::_unique2"),
}


def train(name: str, engine: Any) -> kedge.Result:
    torch.manual_seed(0)
    return kedge.train(
        Net(MODULES[name][0]),
        CLIENTS,
        test=dataset(9),
        rounds=2,
        engine=engine,
        compile="off",
        progress=False,
    )


@pytest.mark.parametrize("name", MODULES)
def test_auto_takes_sequential_and_says_why(name: str) -> None:
    plain, chosen = train(name, "sequential"), train(name, "auto")
    assert chosen.engine["name"] == "sequential"
    assert "cannot run as a stack of clients" in chosen.engine["reason"]
    assert MODULES[name][1] in chosen.engine["reason"]
    assert all(torch.equal(v, chosen.model[k]) for k, v in plain.model.items())


@pytest.mark.parametrize("name", ["value", "shape", "operator"])
def test_stacked_names_the_module_the_reason_and_the_way_out(name: str) -> None:
    with pytest.raises(kedge.RequestError, match=MODULES[name][1]) as caught:
        train(name, "stacked")
    assert "Net cannot run as a stack of clients" in str(caught.value)
    assert "engine.name = 'sequential' can run it" in str(caught.value)


def test_other_errors_stay_what_they_are() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes"), Diverged("vmap"), ValueError("vmap")):
        assert unstackable(error) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["value", "operator"])
def test_what_cannot_be_compiled_is_told_with_its_line(name: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(kedge.RequestError, match=r"test_unstackable\.py, line \d+, cannot") as caught:
        kedge.train(Net(MODULES[name][0]), CLIENTS, rounds=1, engine="stacked", compile="on", progress=False)
    assert "engine.name = 'sequential' can run it" in str(caught.value)
