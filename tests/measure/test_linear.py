"""The linear model against autograd, small steps and brute force, and its exact identities."""

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

from kedge.measure.theory.contraction import (
    mean_cosine,
    paper_minimum,
    paper_ratio,
    predicted_ratio,
    remaining_fraction,
)
from kedge.measure.theory.linear import (
    ADDITIVE,
    LEAST,
    MULTIPLICATIVE,
    NETWORKS,
    NEVER,
    Network,
    Point,
    Training,
    discrepancy,
    gradient_descent,
    gradient_flow,
    loss,
    next_round,
    random_start,
    ratios,
    trajectory,
)

BOTH = pytest.mark.parametrize("network", NETWORKS.values(), ids=list(NETWORKS))


def at(n: list[float], v: float) -> Point:
    return Point(torch.tensor(n, dtype=torch.float64), torch.tensor(v, dtype=torch.float64))


class TwoLayers(nn.Module):
    """x → (x·n)·v as a PyTorch module."""

    def __init__(self, n: Tensor, v: Tensor) -> None:
        super().__init__()
        self.first = nn.Linear(len(n), 1, bias=False, dtype=torch.float64)
        self.last = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.first.weight.copy_(n[None])
            self.last.weight.copy_(v.reshape(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out


class OneLayer(nn.Module):
    """x → x·n + v as a PyTorch module."""

    def __init__(self, n: Tensor, v: Tensor) -> None:
        super().__init__()
        self.first = nn.Linear(len(n), 1, dtype=torch.float64)
        with torch.no_grad():
            self.first.weight.copy_(n[None])
            self.first.bias.copy_(v.reshape(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(x)
        return out


def trained_by_torch(module: nn.Module, client: int, training: Training) -> list[Tensor]:
    """A client's parameters after torch.optim.SGD on (f − 1)², with the second frozen in the first steps."""
    first, second = module.parameters()
    x = torch.eye(first.numel(), dtype=torch.float64)[client : client + 1]
    optimizer = torch.optim.SGD(module.parameters(), lr=training.lr)
    for step in range(training.steps):
        optimizer.zero_grad()
        ((module(x) - 1) ** 2).sum().backward()
        if step < training.frozen:
            second.grad = None
        optimizer.step()
    return [parameter.detach().flatten() for parameter in (first, second)]


@pytest.mark.parametrize("frozen", [0, 1, 7, NEVER])
@BOTH
def test_three_rounds_are_those_of_torch_s_autograd_and_sgd(network: Network, frozen: float) -> None:
    """Whole models are averaged here, also the numbers that a client does not train."""
    training = Training(lr=0.1, steps=20, frozen=frozen)
    module = TwoLayers if network is MULTIPLICATIVE else OneLayer
    start = random_start(3, 4)
    course = trajectory(network, start, training, 3)
    for seed in range(3):
        n, v = start.n[seed], start.v[seed]
        for round in range(1, 4):
            sent = [trained_by_torch(module(n, v), client, training) for client in range(4)]
            n, v = (torch.stack(each).mean(0) for each in zip(*sent, strict=True))
            torch.testing.assert_close(course.n[round, seed], n, rtol=1e-13, atol=0)
            torch.testing.assert_close(course.v[round, seed], v[0], rtol=1e-13, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [0, 3, NEVER])
@BOTH
def test_gradient_flow_is_where_small_steps_lead(network: Network, frozen: float) -> None:
    """Compare with 8000 Runge–Kutta steps of fourth order, from both signs and from v = 0."""
    n = torch.tensor([[0.5, 1.5, -0.3], [-0.7, -1.2, -0.1], [1.3, 0.4, 2.0]], dtype=torch.float64)
    v = torch.tensor([1.0, -0.4, 0.0], dtype=torch.float64)
    training = Training(lr=0.1, frozen=frozen, gradient=2.0, flow=True)

    def motion(now: Tensor, free: float) -> Tensor:
        of_n, of_v = network.slopes(now[0], now[1])
        error = network.output(now[0], now[1]) - 1
        return -2.0 * torch.stack([error * of_n, free * error * of_v])

    def integrate(now: Tensor, time: float, steps: int, free: float) -> Tensor:
        h = time / steps
        for _ in range(steps):
            first = motion(now, free)
            second = motion(now + h / 2 * first, free)
            third = motion(now + h / 2 * second, free)
            now = now + h / 6 * (first + 2 * second + 2 * third + motion(now + h * third, free))
        return now

    now = torch.stack([n, v[:, None].expand_as(n)])
    now = integrate(now, 0.1 * frozen if frozen < NEVER else 80.0, 2000, 0.0)
    if frozen < NEVER:
        now = integrate(now, 20.0, 8000, 1.0)
    got = torch.stack(gradient_flow(network, Point(n, v), training))
    torch.testing.assert_close(got, now, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_descent_with_ever_smaller_steps_becomes_the_flow() -> None:
    """Explicit Euler is of first order: a tenth of the step has a tenth of the error."""
    start = random_start(20, 3)
    for frozen, time in ((0, 60.0), (4, 60.0)):
        goal = next_round(MULTIPLICATIVE, start, Training(frozen=frozen, flow=True)).n
        errors = []
        for smaller in (10, 100):
            training = Training(0.1 / smaller, round(time / 0.1) * smaller, frozen * smaller)
            errors.append(float((next_round(MULTIPLICATIVE, start, training).n - goal).abs().max()))
        assert errors[0] < 0.05
        assert errors[1] == pytest.approx(errors[0] / 10, rel=0.2)


def test_flow_from_the_ridge_between_both_signs_ends_in_the_saddle() -> None:
    n, v = gradient_flow(MULTIPLICATIVE, at([0.8, 1.0], -0.8), Training(flow=True))
    assert (float(n[0]), float(v[0])) == (0.0, 0.0)
    assert float(n[1] * v[1]) == pytest.approx(1.0, rel=1e-15)


def test_the_minimum_keeps_its_digits_far_out() -> None:
    """At n = 10⁴ the paper's difference of roots would lose half of the digits of v* or all."""
    n, v = MULTIPLICATIVE.minimum(torch.tensor(1e4, dtype=torch.float64), torch.tensor(0.0).double())
    assert float(n * v) == pytest.approx(1.0, rel=1e-15)
    n, v = paper_minimum(torch.tensor(1e4, dtype=torch.float64), torch.tensor(0.0).double())
    assert float(n * v) == pytest.approx(0.25, rel=1e-15)


@pytest.mark.parametrize("clients", [2, 3, 7])
def test_discrepancy_is_the_sum_over_ordered_pairs_and_of_two_the_distance(clients: int) -> None:
    n = random_start(5, clients).n
    for row, got in zip(n.tolist(), discrepancy(n).tolist(), strict=True):
        pairs = math.fsum(abs(a - b) for a, b in permutations(row, 2))
        assert got == pytest.approx(pairs / 2 if clients == 2 else pairs, rel=1e-14)


def test_ratios_stop_at_the_first_discrepancy_that_is_rounding_or_not_finite() -> None:
    d = torch.tensor(
        [[1.0, 1.0, 1.0, 0.0], [0.5, LEAST, math.inf, 1.0], [0.25, 1e-13, 1.0, 1.0], [0.5, 1.0, 1.0, 1.0]],
        dtype=torch.float64,
    )
    found = ratios(d)
    assert found[:, 0].tolist() == [0.5, 0.5, 2.0]
    assert found[:2, 1].tolist() == [LEAST, 1e-13 / LEAST]
    assert found[2:, 1].isnan().all()
    assert found[:, 2:].isnan().all()


@pytest.mark.parametrize("clients", [2, 5])
def test_frozen_v_contracts_exactly_as_theory_says_wherever_it_starts(clients: int) -> None:
    """In a step, n_j − 1/v shrinks by 1 − g·η·v² for every client; with small v the ratio is far from ½."""
    start = random_start(50, clients)
    for network in NETWORKS.values():
        for training in (
            Training(frozen=NEVER),
            Training(frozen=50, gradient=1),
            Training(steps=3, frozen=9),
        ):
            after = next_round(network, start, training)
            measured = discrepancy(after.n) / discrepancy(start.n)
            torch.testing.assert_close(
                measured, predicted_ratio(network, start, training), rtol=1e-12, atol=1e-12
            )
            torch.testing.assert_close(after.v, start.v, rtol=1e-15, atol=0)


@pytest.mark.parametrize("flow", [False, True])
def test_the_additive_model_contracts_as_theory_says_wherever_it_starts(flow: bool) -> None:
    """Its trajectories are straight, so (m − ½)/m and its FedBug variant are exact when f has reached 1."""
    for clients in (2, 3, 6):
        start = random_start(30, clients)
        for frozen in (0, 1, 4):
            training = Training(steps=150, frozen=frozen, flow=flow)
            measured = discrepancy(next_round(ADDITIVE, start, training).n) / discrepancy(start.n)
            expected = predicted_ratio(ADDITIVE, start, training)
            torch.testing.assert_close(measured, expected, rtol=1e-12, atol=1e-12)
            share = math.exp(-0.2 * frozen) if flow else 0.8**frozen
            exact = torch.full_like(expected, (clients - 1 + share / 2) / clients)
            torch.testing.assert_close(expected, exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize("frozen", [0, 1, 5])
@pytest.mark.parametrize("flow", [False, True])
def test_theory_holds_the_better_the_nearer_the_minimum(flow: bool, frozen: int) -> None:
    """The error of r is proportional to the distance from n·v = 1; the error of the paper's form is not."""
    training = Training(steps=400, frozen=frozen, flow=flow)
    errors = []
    for near in (1e-2, 1e-3, 1e-4):
        start = at([1.3 * (1 + near), 1.3, 1.3 * (1 - 2 * near)], 1 / 1.3)
        measured = discrepancy(next_round(MULTIPLICATIVE, start, training).n) / discrepancy(start.n)
        errors.append(abs(float(measured - predicted_ratio(MULTIPLICATIVE, start, training))))
        assert abs(float(measured - paper_ratio(MULTIPLICATIVE, start, training))) > 0.02
    assert errors[0] < 5e-3
    assert errors[1] < errors[0] / 5
    assert errors[2] < errors[1] / 5


def test_the_printed_ratio_is_the_true_one_for_two_clients_and_half_the_gradient() -> None:
    start = random_start(20, 2)
    for frozen in (0, 1, 3):
        halved = Training(frozen=frozen, gradient=1)
        same = predicted_ratio(MULTIPLICATIVE, start, halved)
        torch.testing.assert_close(paper_ratio(MULTIPLICATIVE, start, halved), same, rtol=1e-15, atol=0)
    assert (paper_ratio(MULTIPLICATIVE, start, Training(frozen=NEVER)) == 0.5).all()
    assert remaining_fraction(MULTIPLICATIVE, at([1.0, 2.0], 0.0), Training(frozen=NEVER, flow=True)) == 1


def test_angles() -> None:
    """n = √3, v = 1 has cos²θ = ¾; the additive model always ½; at 0 nothing moves, and the angle is NaN."""
    assert float(mean_cosine(MULTIPLICATIVE, at([math.sqrt(3)], 1.0))) == pytest.approx(0.75, rel=1e-15)
    assert float(mean_cosine(ADDITIVE, at([7.0, -2.0], 0.0))) == 0.5
    assert mean_cosine(MULTIPLICATIVE, at([0.0, 0.0], 0.0)).isnan()


def test_seeds_are_stacked_without_touching_each_other_and_more_clients_keep_the_first() -> None:
    few, many = random_start(3, 2), random_start(7, 5)
    assert torch.equal(many.n[:3, :2], few.n)
    assert torch.equal(many.v[:3], few.v)
    each = torch.cat([many.n, many.v[:, None]], 1)
    assert len(set(each.flatten().tolist())) == each.numel()
    assert 0 < float(each.min()) < 0.3 < 1.7 < float(each.max()) < 2
    training = Training(steps=10, frozen=2)
    together = trajectory(MULTIPLICATIVE, many, training, 4)
    for seed in range(7):
        alone = trajectory(MULTIPLICATIVE, Point(many.n[seed], many.v[seed]), training, 4)
        assert torch.equal(together.n[:, seed], alone.n)
        assert torch.equal(together.v[:, seed], alone.v)


def test_the_loss_is_the_clients_mean() -> None:
    assert float(loss(MULTIPLICATIVE, at([1.0, 3.0], 2.0))) == (1 + 25) / 2
    assert float(loss(ADDITIVE, at([1.0, 3.0], 2.0))) == (4 + 16) / 2


def test_frozen_steps_leave_v_alone() -> None:
    start = random_start(4, 3)
    _, v = gradient_descent(MULTIPLICATIVE, start, Training(steps=5, frozen=5))
    assert torch.equal(v, start.v[:, None].expand_as(v))
    _, v = gradient_descent(MULTIPLICATIVE, start, Training(steps=6, frozen=5))
    assert (v != start.v[:, None]).all()
