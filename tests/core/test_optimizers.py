"""SGD and Adam against torch.optim, step by step."""

import pytest
import torch
from torch import Tensor

from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD, Adam, Optimizer
from kedge.core.tree import Leaves

STEPS = 7


def start() -> Leaves:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(3, 2, generator=generator, dtype=torch.float64),
        "b": torch.randn(4, generator=generator, dtype=torch.float64),
    }


def gradient(params: Leaves, step: int) -> Leaves:
    """An arbitrary nonlinear function of the parameters and the step."""
    return {k: torch.sin(v * (step + 1)) + v**3 for k, v in params.items()}


def train_by_kedge(optimizer: Optimizer, frozen: frozenset[tuple[str, int]] = frozenset()) -> Leaves:
    params, lr = start(), torch.tensor(optimizer.rate(0), dtype=torch.float64)
    state = optimizer.init(params)
    for step in range(STEPS):
        grads = {k: g for k, g in gradient(params, step).items() if (k, step) not in frozen}
        params, new = optimizer.update(grads, {}, state, params, lr)
        state = dict(new)
    return params


def train_by_torch(
    optimizer: torch.optim.Optimizer, params: dict[str, Tensor], frozen: frozenset[tuple[str, int]]
) -> None:
    for step in range(STEPS):
        values = {k: v.detach() for k, v in params.items()}
        for k, g in gradient(values, step).items():
            params[k].grad = None if (k, step) in frozen else g
        optimizer.step()


# (leaf, step): b is frozen in four of the seven steps.
FROZEN = frozenset({("b", 0), ("b", 1), ("b", 4), ("b", 6)})
each_frozen = pytest.mark.parametrize("frozen", [frozenset(), FROZEN], ids=["all", "some frozen"])


@each_frozen
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torch_sgd(momentum: float, weight_decay: float, frozen: frozenset[tuple[str, int]]) -> None:
    """A frozen leaf has no gradient: torch gives it no step and no weight decay, and keeps its momentum."""
    reference = {k: v.requires_grad_() for k, v in start().items()}
    torch_sgd = torch.optim.SGD(reference.values(), 0.05, momentum=momentum, weight_decay=weight_decay)
    train_by_torch(torch_sgd, reference, frozen)
    got = train_by_kedge(SGD(0.05, momentum, weight_decay), frozen)
    for k, v in got.items():
        torch.testing.assert_close(v, reference[k].detach(), rtol=1e-14, atol=1e-15)


@each_frozen
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_torch_adam(weight_decay: float, frozen: frozenset[tuple[str, int]]) -> None:
    """The bias correction counts a leaf's own steps, as torch's does for parameters without a gradient."""
    reference = {k: v.requires_grad_() for k, v in start().items()}
    adam = torch.optim.Adam(reference.values(), 0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=weight_decay)
    train_by_torch(adam, reference, frozen)
    got = train_by_kedge(Adam(0.01, 0.8, 0.95, 1e-6, weight_decay), frozen)
    for k, v in got.items():
        torch.testing.assert_close(v, reference[k].detach(), rtol=1e-13, atol=1e-15)


def test_adam_counts_the_steps_of_each_leaf() -> None:
    adam, params = Adam(), start()
    state = adam.init(params)
    for step in range(5):
        grads = {k: g for k, g in gradient(params, step).items() if k == "a" or step >= 3}
        params, new = adam.update(grads, {}, state, params, torch.tensor(0.01))
        state = dict(new)
    assert {k: int(v) for k, v in state["steps"].items()} == {"a": 5, "b": 2}


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9, 0.1), Adam(0.1, weight_decay=0.1)])
def test_a_leaf_without_a_gradient_is_passed_through(optimizer: Optimizer) -> None:
    params = start()
    state = optimizer.init(params)
    moved, after = optimizer.update({"a": params["a"]}, {}, state, params, torch.tensor(0.1))
    assert moved["b"] is params["b"]
    assert not torch.equal(moved["a"], params["a"])
    assert all(part["b"] is state[name]["b"] for name, part in after.items())


def test_the_unclipped_gradient_is_added_only_to_leaves_with_a_gradient() -> None:
    params = {"a": torch.tensor([2.0]), "b": torch.tensor([3.0])}
    grads, unclipped = {"a": torch.tensor([1.0])}, {"a": torch.tensor([10.0]), "b": torch.tensor([10.0])}
    moved, _ = SGD(0.1, weight_decay=0.5).update(grads, unclipped, {}, params, torch.tensor(0.1))
    assert float(moved["a"]) == pytest.approx(2 - 0.1 * (1 + 0.5 * 2 + 10))
    assert float(moved["b"]) == 3


def test_update_modifies_nothing() -> None:
    for optimizer in (SGD(0.1, 0.9, 0.1), Adam(0.1)):
        params = start()
        state = optimizer.init(params)
        optimizer.update(gradient(params, 0), {}, state, params, torch.tensor(0.1))
        assert all(torch.equal(v, start()[k]) for k, v in params.items())
        assert not any(v.any() for part in state.values() for v in part.values())


@pytest.mark.parametrize("optimizer", [SGD(0.4, decay=0.5), Adam(0.4, decay=0.5)])
def test_the_learning_rate_decays_by_round(optimizer: Optimizer) -> None:
    assert [optimizer.rate(round) for round in range(4)] == [0.4, 0.2, 0.1, 0.05]


def test_plain_sgd_keeps_no_state() -> None:
    assert SGD(0.1).init(start()) == {}
    assert SGD(0.1).momentum == 0
    assert Adam(beta1=0.7).momentum == 0.7


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (SGD, {"lr": 0.0}, "lr > 0"),
        (SGD, {"momentum": 1.0}, "0 ≤ momentum < 1"),
        (SGD, {"weight_decay": -1.0}, "weight_decay ≥ 0"),
        (SGD, {"decay": 0.0}, "0 < decay ≤ 1"),
        (SGD, {"lr": float("nan")}, "lr > 0"),
        (Adam, {"lr": -1.0}, "lr > 0"),
        (Adam, {"beta1": 1.0}, "0 ≤ beta1 < 1"),
        (Adam, {"beta2": -0.1}, "0 ≤ beta2 < 1"),
        (Adam, {"eps": 0.0}, "eps > 0"),
        (Adam, {"decay": 1.1}, "0 < decay ≤ 1"),
    ],
)
def test_a_value_out_of_range_is_refused(
    kind: type[SGD] | type[Adam], values: dict[str, float], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        kind(**values)
