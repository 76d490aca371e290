"""Multiply-adds against torch's own counter, against the formula for chains, and against hand counts."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from kedge.measure.cost.macs import chain_macs, count_macs, forward_macs
from kedge.models import MODELS

SHAPES = {"shallow-cnn": (1, 28, 28), "standard-cnn": (3, 32, 32), "lenet5": (1, 28, 28), "mlp": (20,)}


def step(module: nn.Module, x: Tensor) -> None:
    """A forward pass, and a backward pass if a parameter needs a gradient."""
    total = module(x).sum()
    if total.requires_grad:
        total.backward()


def macs_by_torch(module: nn.Module, x: Tensor) -> int:
    """Multiply-adds of a step by torch's counter."""
    with FlopCounterMode(display=False) as counter:
        step(module, x)
    return int(counter.get_total_flops()) // 2


def with_trainable(module: nn.Module, names: list[str]) -> nn.Module:
    """The module, in which only the layers `names` train."""
    for name, layer in module.named_modules():
        for p in layer.parameters(recurse=False):
            p.requires_grad_(name in names)
    return module


@pytest.mark.parametrize("name", SHAPES)
def test_every_choice_of_trainable_layers_costs_what_torch_counts_and_what_the_formula_says(
    name: str,
) -> None:
    module, x = MODELS[name](SHAPES[name], 10), torch.zeros(2, *SHAPES[name])
    forward = forward_macs(module, x)
    for flags in product((False, True), repeat=len(forward)):
        chosen = with_trainable(module, [k for k, flag in zip(forward, flags, strict=True) if flag])
        macs = count_macs(partial(step, chosen, x))[0]
        assert macs == macs_by_torch(chosen, x) == chain_macs(list(forward.values()), flags), flags


def test_a_residual_network_without_convolutions_in_its_shortcuts_is_a_chain() -> None:
    module, x = MODELS["resnet20"]((3, 32, 32), 10), torch.zeros(1, 3, 32, 32)
    forward = forward_macs(module, x)
    products = {k: n for k, n in forward.items() if n}
    assert len(products) == 20  # 19 convolutions and the classifier; norms have none
    for lowest in range(20):
        flags = [number >= lowest for number in range(20)]
        names = [k for k, flag in zip(products, flags, strict=True) if flag]
        macs = count_macs(partial(step, with_trainable(module, names), x))[0]
        assert macs == chain_macs(list(products.values()), flags)
        assert macs == macs_by_torch(module, x)


def test_a_convolution_in_a_shortcut_costs_no_input_gradient_beside_the_lowest_layer() -> None:
    """The formula for a chain is too high here; the counter counts the operators that autograd runs."""
    module, x = MODELS["resnet18"]((3, 32, 32), 10), torch.zeros(1, 3, 32, 32)
    forward = {k: n for k, n in forward_macs(module, x).items() if n}
    lowest = "layer2.0.conv1"
    names = list(forward)[list(forward).index(lowest) :]
    macs = count_macs(lambda: step(with_trainable(module, names), x))[0]
    assert macs == macs_by_torch(module, x)
    shortcut = next(k for k in names if "layer2.0.downsample" in k or "layer2.0.shortcut" in k)
    assert chain_macs(list(forward.values()), [k in names for k in forward]) == macs + forward[shortcut]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_each_gradient_of_a_grouped_convolution_costs_as_much_as_forward(groups: int) -> None:
    """8 kernels of 4/groups × 3×3 at 4×4 places."""
    layer = nn.Conv2d(4, 8, 3, groups=groups)
    x = torch.zeros(1, 4, 6, 6, requires_grad=True)
    forward = 8 * 4 // groups * 9 * 16
    assert forward_macs(nn.Sequential(layer), x.detach()) == {"0": forward}
    assert count_macs(lambda: step(layer, x))[0] == 3 * forward
    # torch ignores the groups in the weight gradient; when it no longer does, delete our formula
    assert macs_by_torch(layer, x) == 2 * forward + groups * forward


@pytest.mark.parametrize("needs", list(product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_agree_with_torch_in_every_mode(transposed: bool, needs: tuple[bool, bool]) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(3, 5, (3, 2), stride=2, padding=1, dilation=(1, 2))
    layer.weight.requires_grad_(needs[0])
    x = torch.zeros(2, 3, 9, 8, requires_grad=needs[1])
    assert count_macs(lambda: step(layer, x))[0] == macs_by_torch(layer, x) > 0


def test_attention_on_a_cpu_is_counted() -> None:
    """Two heads, seven tokens, width four: scores and their product with the values, 7·7·4 each."""
    q, k, v = (torch.zeros(1, 2, 7, 4, requires_grad=True) for _ in range(3))
    assert count_macs(lambda: F.scaled_dot_product_attention(q, k, v))[0] == 2 * (2 * 7 * 7 * 4)
    both = count_macs(lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v).sum(), (q, k, v)))[
        0
    ]
    assert both == (2 + 5) * (
        2 * 7 * 7 * 4
    )  # the backward pass computes the scores again, and four gradients


def test_counting_leaves_torch_s_chance_as_it_was() -> None:
    before = torch.get_rng_state()
    _, drawn = count_macs(lambda: torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(3))


def test_nothing_that_trains_costs_a_pass_forward() -> None:
    assert chain_macs([3, 4, 5], [False] * 3) == 12
    assert chain_macs([3, 4, 5], [False, True, False]) == 12 + 4 + 5
