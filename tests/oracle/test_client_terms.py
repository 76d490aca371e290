"""Terms in the client's objective: their gradients, FedDyn's ablations, and refused arguments."""

from functools import partial

import pytest
import torch
from torch import Tensor

from kedge.algorithms import feddc, feddecorr, feddyn, feddyn_no_h, fedntd
from kedge.algorithms.feddecorr import decorrelation
from kedge.audit.bed import bed_q, local_q
from kedge.audit.oracles import client_terms as oracle
from kedge.audit.recorded_run import record_rounds
from kedge.audit.training import ENGINES
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.model import Output
from kedge.core.optimizers import SGD, Adam


@pytest.mark.parametrize("real", [1, 2, 5])
def test_the_gradient_of_decorrelation_is_that_of_finite_differences(real: int) -> None:
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(real), dtype=torch.float64)
    weight = (torch.arange(7) < real).double()
    assert torch.autograd.gradcheck(partial(decorrelation, weight=weight), (rows.requires_grad_(),))


def test_decorrelation_of_constant_features_is_zero_and_so_is_its_gradient() -> None:
    """Dead ReLUs have the variance 0, so that only 1e-8 is left in the divisor."""
    rows = torch.tensor([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.5, 0.0]]).requires_grad_()
    value = decorrelation(rows, torch.ones(3))
    assert value.item() == 0
    assert not torch.autograd.grad(value, rows)[0].any()


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_the_gradient_of_not_true_distillation_is_that_of_finite_differences(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    here, there = (torch.randn(6, classes, generator=generator, dtype=torch.float64) for _ in range(2))
    y = [number % classes for number in range(6)]

    def value(logits: Tensor) -> Tensor:
        seen = oracle.step_with_outputs(Output(logits, logits), Output(there, there), y, 4)
        return oracle.loss_term(fedntd(0.7, 2.0), seen)

    assert torch.autograd.gradcheck(value, (here.requires_grad_(),))


@pytest.mark.parametrize("engine", ENGINES)
def test_feddyn_without_h_goes_on_with_feddyns_memory(engine: str) -> None:
    """A second round of FedDyn without h starts from the same u_i as a second round of FedDyn."""
    stages = [(feddyn(0.1), 1), (feddyn_no_h(0.1), 1)]
    seen = record_rounds(bed_q(), stages, local_q(), [[0, 1]] * 2, ENGINES[engine])
    alone = record_rounds(bed_q(), [(feddyn(0.1), 2)], local_q(), [[0, 1]] * 2, ENGINES[engine])
    for client in ("0", "1"):
        kept, want = (one[1].memories[client]["slots"]["dynamic"]["u"]["w"] for one in (seen, alone))
        assert torch.equal(kept, want)
    assert torch.equal(seen[1].server.shared["w"], alone[1].server.average["w"])


def test_bad_hyper_parameters_are_refused_with_a_reason() -> None:
    with pytest.raises(RequestError, match=r"feddyn-no-h.*need alpha > 0"):
        feddyn_no_h(0.0)
    with pytest.raises(RequestError, match=r"feddc.*need alpha > 0"):
        feddc(-1.0)
    with pytest.raises(RequestError, match=r"feddecorr.*need beta ≥ 0"):
        feddecorr(float("nan"))
    with pytest.raises(RequestError, match=r"fedntd.*need beta ≥ 0"):
        fedntd(-0.1)
    with pytest.raises(RequestError, match="need temperature > 0"):
        fedntd(temperature=0.0)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()], ids=["momentum", "adam"])
def test_feddc_refuses_momentum_and_adam(optimizer: SGD | Adam) -> None:
    with pytest.raises(RequestError, match=r"feddc with .*plain SGD"):
        Stage(feddc(), 1, LocalTraining(optimizer=optimizer))
