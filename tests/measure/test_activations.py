"""Features and unit outputs are equal to the outputs of the module's layers."""

import torch
from tests.contract.problem import network
from torch import nn
from torch.nn import functional as F

from kedge.measure.activations import model_features, unit_outputs
from kedge.nn.from_module import from_module


def same(x: torch.Tensor) -> torch.Tensor:
    return x


class Bare(nn.Module):
    """A linear layer, and a parameter of a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.uncalled = nn.ParameterList([torch.ones(3, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = F.relu(self.first(x), inplace=True) @ self.uncalled[0]
        return out


def test_features_are_the_classifiers_input_whatever_the_chunks() -> None:
    model = network("batch")
    params, buffers = model.init(0)
    x = torch.randn(7, 1, 4, 4)
    whole = model_features(model, params, buffers, x, same)
    assert whole.shape == (7, 16)
    assert torch.allclose(model_features(model, params, buffers, x, same, chunk=3), whole, atol=1e-6)


def test_a_unit_s_output_is_that_of_its_last_layer() -> None:
    """A unit of convolution and norm has the norm's output; the last unit has the logits."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(2)
    norm.register_buffer("running_mean", torch.full((2,), 0.3))
    module = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3))
    model = from_module(module)
    params, buffers = model.init(0)
    x = torch.randn(5, 1, 4, 4)
    found = unit_outputs(model, params, buffers, x, same)
    assert [*found] == [0, 1]
    module.eval()
    with torch.no_grad():
        assert torch.allclose(found[0], module[:2](x), atol=1e-6)
        assert torch.allclose(found[1], module(x), atol=1e-6)


def test_a_unit_without_a_layer_is_not_there_and_nothing_stays_hooked() -> None:
    module = Bare()
    model = from_module(module)
    params, buffers = model.init(0)
    x = torch.randn(5, 4)
    found = unit_outputs(model, params, buffers, x, same)
    first = {n for n, unit in enumerate(model.units) if "first.weight" in unit}
    assert set(found) == first
    with torch.no_grad():  # the output before the activation changed it in place
        assert torch.allclose(found[next(iter(first))], module.first(x), atol=1e-6)
    nn.Linear(2, 2)(torch.randn(1, 2))
    assert len(found) == 1
