"""Parameter counts and units of the papers' networks."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from tests.residual import Residual
from torch import nn

from kedge.core.errors import RequestError
from kedge.models import MODELS
from kedge.models.alexnet import alexnet_bn
from kedge.models.cnn import lenet5, shallow_cnn, small_cnn, standard_cnn
from kedge.models.inertial import pamap2_net
from kedge.models.mlp import mlp
from kedge.models.resnet import Block, Norm, Stem, option_a, resnet18, resnet20, resnet34
from kedge.models.vgg import vgg11
from kedge.nn.from_module import from_module, seeded
from kedge.nn.units import units_of

CIFAR, TINY, MNIST = (3, 32, 32), (3, 64, 64), (1, 28, 28)
SHAPES: dict[str, tuple[int, ...]] = {"vgg11": CIFAR, "alexnet-bn": TINY, "pamap2-net": (27, 1, 200)}


@pytest.mark.parametrize(
    ("build", "shape", "classes", "count", "units"),
    [
        (standard_cnn, CIFAR, 10, 797_962, 5),
        (standard_cnn, CIFAR, 100, 815_332, 5),
        (standard_cnn, TINY, 200, 530_888, 6),
        (shallow_cnn, MNIST, 10, 582_026, 4),
        (shallow_cnn, CIFAR, 10, 878_538, 4),
        (shallow_cnn, CIFAR, 100, 924_708, 4),
        (shallow_cnn, TINY, 200, 5_694_600, 4),
        (vgg11, CIFAR, 10, 9_225_610, 9),
        (partial(vgg11, norm="batch"), CIFAR, 10, 9_231_114, 9),
        (partial(vgg11, norm="group", head="three"), CIFAR, 10, 9_756_426, 11),
        (partial(vgg11, head="three"), CIFAR, 10, 9_750_922, 11),
        (lenet5, MNIST, 11, 44_511, 5),
        (partial(lenet5, norm="batch"), MNIST, 11, 44_555, 5),
        (pamap2_net, (27, 1, 200), 10, 99_466, 4),
        (pamap2_net, (9, 128), 6, 59_750, 4),
        (partial(alexnet_bn, hidden=32), (1, 64, 64), 3, 2_752_739, 8),
        # torchvision's 57,020,228 with four classes, and 2 · (64+192+384+256+256+4096+4096) of batch norm
        (alexnet_bn, (3, 64, 64), 4, 57_038_916, 8),
    ],
)
def test_parameters_and_units_are_the_published_ones(
    build: Callable[..., nn.Module], shape: tuple[int, ...], classes: int, count: int, units: int
) -> None:
    module = build(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert len(from_module(module).units) == units
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("build", "shape", "layers"),
    [
        (standard_cnn, CIFAR, (4_864, 102_464, 614_784, 73_920, 1_930)),
        (shallow_cnn, MNIST, (832, 51_264, 524_800, 5_130)),
    ],
)
def test_each_unit_is_a_layer_of_the_published_size(
    build: Callable[..., nn.Module], shape: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    model = from_module(build(shape, 10))
    params, _ = model.init(0)
    assert tuple(sum(params[k].numel() for k in unit) for unit in model.units) == layers


@pytest.mark.parametrize(
    ("build", "options", "classes", "count"),
    [
        (resnet18, {}, 100, 11_227_812),
        (resnet18, {}, 200, 11_279_112),
        (resnet18, {"stem": "cifar"}, 200, 11_271_432),
        (resnet34, {}, 100, 21_335_972),
        (resnet34, {}, 200, 21_387_272),
        (resnet34, {"stem": "cifar"}, 200, 21_379_592),
        (resnet34, {"norm": "batch"}, 200, 21_387_272),
        (resnet20, {}, 100, 275_572),
        (resnet20, {}, 10, 269_722),
        (resnet20, {"norm": "group"}, 10, 269_722),
    ],
)
def test_residual_networks_have_the_published_number_of_parameters(
    build: Callable[..., nn.Module], options: dict[str, str], classes: int, count: int
) -> None:
    with torch.device("meta"):
        module = build(CIFAR, classes, **options)
        assert sum(p.numel() for p in module.parameters()) == count
        assert module(torch.zeros(2, *CIFAR)).shape == (2, classes)


@pytest.mark.parametrize(
    ("build", "layers"),
    [
        (resnet18, (9_536 + 147_968, 525_568, 2_099_712, 8_393_728 + 51_300)),
        (resnet34, (9_536 + 221_952, 1_116_416, 6_822_400, 13_114_368 + 51_300)),
    ],
)
def test_each_module_of_a_residual_network_has_the_published_size(
    build: Callable[..., nn.Module], layers: tuple[int, ...]
) -> None:
    with torch.device("meta"):
        module = build(CIFAR, 100)
    sizes = {k: v.numel() for k, v in module.named_parameters()}
    assert tuple(sum(sizes[k] for k in unit) for unit in units_of(module, "module")) == layers


def test_resnet18_with_batch_norm_is_torchvision_s() -> None:
    """The same names and the same function, written a second time; in training and after it."""
    module = seeded(lambda: resnet18(CIFAR, 7, norm="batch", width=4), 0).double()
    other = Residual(3, 7, width=4).double()
    other.load_state_dict(module.state_dict())
    x = torch.randn(4, *CIFAR, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(module(x), other(x))
    torch.testing.assert_close(module.eval()(x), other.eval()(x))


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("cifar", 32)])
def test_the_stem_sets_the_size_of_the_first_layer(stem: Stem, side: int) -> None:
    """32×32 images come out of the ImageNet stem and its pooling as 8×8; three layers then halve them."""
    sizes: list[tuple[int, ...]] = []
    module = resnet18(CIFAR, 7, stem=stem, width=4)
    for block in module.modules():
        if isinstance(block, Block):
            block.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    module(torch.zeros(1, *CIFAR))
    assert sizes[::2] == sizes[1::2] == [(4 * 2**n, side // 2**n, side // 2**n) for n in range(4)]


def test_option_a_takes_every_other_pixel_and_adds_channels_of_zeros() -> None:
    x = torch.arange(2 * 3 * 5 * 4.0).view(2, 3, 5, 4)
    y = option_a(3, 6, 2, "batch")(x)
    assert torch.equal(y[:, :3], x[:, :, [0, 2, 4]][..., [0, 2]])
    assert torch.equal(y[:, 3:], torch.zeros(2, 3, 3, 2))


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)])
def test_resnet20_s_features_have_64_dimensions_and_its_norm_is_as_asked(
    norm: Norm, kind: type[nn.Module]
) -> None:
    layers = list(resnet20(CIFAR, 100, norm=norm).modules())
    assert [layer.in_features for layer in layers if isinstance(layer, nn.Linear)] == [64]
    assert sum(isinstance(layer, kind) for layer in layers) == 19


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
@pytest.mark.parametrize("build", [standard_cnn, shallow_cnn, small_cnn])
def test_a_norm_layer_adds_no_unit(build: Callable[..., nn.Module], norm: str) -> None:
    """It belongs to its convolution; FedBug's schedule counts units."""
    plain, normed = from_module(build(MNIST, 10)), from_module(build(MNIST, 10, norm=norm))
    assert len(normed.units) == len(plain.units)
    extra = sum(map(len, normed.units)) - sum(map(len, plain.units))
    assert extra == (0 if norm == "none" else 4)


def test_group_norm_has_two_groups() -> None:
    norms = [
        layer for layer in small_cnn(MNIST, 10, norm="group").modules() if isinstance(layer, nn.GroupNorm)
    ]
    assert [layer.num_groups for layer in norms] == [2, 2]


def test_the_perceptron_takes_samples_of_any_shape() -> None:
    module = mlp((1, 8, 8), 10, hidden=(32, 16))
    assert module(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert len(from_module(module).units) == 3
    assert len(from_module(mlp((5,), 2, hidden=())).units) == 1


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match="too small"):
        standard_cnn((1, 8, 8), 10)
    with pytest.raises(RequestError, match="Use mlp"):
        shallow_cnn((16,), 10)
    with pytest.raises(RequestError, match="Use mlp"):
        resnet20((16,), 10)


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match=r"width = 3: need at least 1 channel, and an even number for"):
        resnet18(CIFAR, 10, width=3)
    with pytest.raises(RequestError, match="width = 0"):
        resnet20(CIFAR, 10, width=0)
    assert resnet20(CIFAR, 10, norm="batch", width=3)(torch.zeros(2, *CIFAR)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_by_name(name: str) -> None:
    shape = SHAPES.get(name, MNIST)
    module = MODELS[name](shape, 7).eval()
    model = from_module(module)
    assert module(torch.zeros(1, *shape)).shape == (1, 7)
    assert len(model.units) >= 2


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("vgg11", MNIST, "32 or more"),
        ("alexnet-bn", CIFAR, "63 or more"),
        ("pamap2-net", CIFAR, r"windows \[channels, time\]"),
        ("pamap2-net", (9, 20), "too short"),
        ("lenet5", (9, 20), "a CNN needs images"),
    ],
)
def test_data_that_do_not_fit_a_network_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        MODELS[name](shape, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_pooling_before_relu_is_the_papers_network_to_the_bit(
    norm: Literal["none", "batch"], dtype: torch.dtype
) -> None:
    own = standard_cnn(CIFAR, 10, norm)
    layers = list(own)  # type: ignore[call-overload]
    for n in range(len(layers) - 1):
        if isinstance(layers[n], nn.MaxPool2d) and isinstance(layers[n + 1], nn.ReLU):
            layers[n], layers[n + 1] = layers[n + 1], layers[n]
    paper = copy.deepcopy(nn.Sequential(*layers)).to(dtype)
    assert str(paper) != str(own)
    x, y = torch.randn(40, *CIFAR, dtype=dtype), torch.randint(0, 10, (40,))
    results = []
    for network in (own.to(dtype), paper):
        logits = network(x)
        torch.autograd.backward(nn.functional.cross_entropy(logits, y))
        results.append([logits, *(v.grad for v in network.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
