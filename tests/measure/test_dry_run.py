"""A step's multiply-adds as a polynomial of its samples, for terms that are not linear in them."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests.contract.problem import federation, perceptron
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from kedge.algorithms import fedavg
from kedge.core.algorithm import LocalTraining
from kedge.core.correction import Correction, End, Step
from kedge.core.tree import Leaves, Tree
from kedge.measure.cost.dry_run import DryRun, quadratic


@dataclass(frozen=True)
class Gram(Correction):
    """Products of weights with weights and of samples with samples, and one at the end of the round."""

    name = "gram"

    def loss(self, step: Step) -> Tensor:
        weight = step.params["1.weight"]
        return (weight @ weight.T).sum() + (step.out.features @ step.out.features.T).sum()

    def finish(self, end: End) -> tuple[Tree, Tree]:
        weight = end.params["1.weight"]
        return end.state, {"gram": weight @ weight.T}


def dry_run() -> DryRun:
    algorithm = replace(fedavg(), corrections=(Gram(),))
    model = perceptron(of=algorithm)
    return DryRun(algorithm, model, LocalTraining(), federation(), *model.init(0))


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 9, 50])
def test_a_step_on_any_number_of_samples_costs_what_torch_counts(samples: int) -> None:
    client = dry_run()
    every = tuple(client.carry["params"])
    with FlopCounterMode(display=False) as counter:
        client.run_step(every, client.batch(samples))
    assert client.step_macs(every, samples) == counter.get_total_flops() // 2


def test_products_at_the_end_of_a_round_are_counted_and_its_upload_is_there() -> None:
    client = dry_run()
    assert client.end == 6 * 16 * 6
    assert client.upload["slots"]["gram"]["gram"].shape == (6, 6)


def test_the_polynomial_passes_through_its_values() -> None:
    def f(n: int) -> int:
        return 7 + 5 * n + 3 * n * n

    values = [f(n) for n in (1, 2, 3)]
    assert [quadratic(values, n) for n in (1, 2, 3, 4, 50)] == [f(n) for n in (1, 2, 3, 4, 50)]


def test_a_dry_run_does_not_change_its_arguments() -> None:
    model = perceptron()
    params, buffers = model.init(0)
    before: Leaves = {k: v.clone() for k, v in params.items()}
    client = DryRun(fedavg(), model, LocalTraining(), federation(dtype=torch.float32), params, buffers)
    client.step_macs(tuple(params), 5)
    assert all(torch.equal(params[k], v) for k, v in before.items())
    assert not any(v.requires_grad for v in params.values())
