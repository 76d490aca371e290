"""units_of: the units that schedules freeze, at each granularity. See also test_from_module.py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract.problem import CLASSES, federation
from tests.residual import Basic, Residual
from torch import Tensor, nn

from kedge.algorithms import fedavg
from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock, Mask
from kedge.engines.sequential import Sequential
from kedge.models.resnet import resnet18, resnet20, resnet34
from kedge.nn.from_module import from_module, seeded
from kedge.nn.units import Granularity, Units, units_of

IMAGE = (3, 8, 8)


def parts(units: Units, depth: int) -> list[set[str]]:
    """The children in each unit; inside layer1, layer2, … the children at depth 2."""
    return [{".".join(k.split(".")[: depth if k.startswith("layer") else 1]) for k in unit} for unit in units]


def whole(module: nn.Module, units: Units) -> bool:
    """Whether every parameter is in exactly one unit, in the order of the module."""
    return [k for unit in units for k in unit] == [k for k, _ in module.named_parameters()]


def brought(shape: tuple[int, ...], classes: int, width: int) -> nn.Module:
    return Residual(shape[0], classes, width)


FOUR = [{"conv1", "bn1", "layer1"}, {"layer2"}, {"layer3"}, {"layer4", "fc"}]


@pytest.mark.parametrize(
    ("build", "modules"),
    [
        (resnet18, FOUR),
        (resnet34, FOUR),
        (brought, FOUR),
        (resnet20, [{"conv1", "bn1", "layer1"}, {"layer2"}, {"layer3", "fc"}]),
    ],
)
def test_modules_are_the_layers_with_the_stem_first_and_the_classifier_last(
    build: Callable[..., nn.Module], modules: list[set[str]]
) -> None:
    """FedBug's "ResNet Module", M = 4."""
    module = build(IMAGE, 3, width=4)
    units = units_of(module, "module")
    assert parts(units, 1) == modules
    assert whole(module, units)


@pytest.mark.parametrize(
    ("build", "counts", "total"),
    [
        (resnet18, (2, 2, 2, 2), 8),
        (resnet34, (3, 4, 6, 3), 16),
        (brought, (2, 2, 2, 2), 8),
        (resnet20, (3, 3, 3), 9),
    ],
)
def test_blocks_are_units_with_the_stem_first_and_the_classifier_last(
    build: Callable[..., nn.Module], counts: tuple[int, ...], total: int
) -> None:
    """FedBug's "ResNet Block", M = 8 for ResNet-18 and 16 for ResNet-34."""
    module = build(IMAGE, 3, width=4)
    units = units_of(module, "block")
    expected = [{f"layer{n}.{block}"} for n, count in enumerate(counts, 1) for block in range(count)]
    expected[0] |= {"conv1", "bn1"}
    expected[-1] |= {"fc"}
    assert parts(units, 2) == expected
    assert len(units) == total
    assert whole(module, units)


@pytest.mark.parametrize("build", [resnet18, brought])
def test_norms_and_the_shortcut_belong_to_their_block(build: Callable[..., nn.Module]) -> None:
    norm = ("bn1.weight", "bn1.bias"), ("bn2.weight", "bn2.bias")
    inside = ("conv1.weight", *norm[0], "conv2.weight", *norm[1])
    shortcut = ("downsample.0.weight", "downsample.1.weight", "downsample.1.bias")
    units = units_of(build(IMAGE, 3, width=4), "block")
    assert units[0] == ("conv1.weight", *norm[0], *(f"layer1.0.{k}" for k in inside))
    assert units[2] == tuple(f"layer2.0.{k}" for k in (*inside, *shortcut))
    assert units[7] == (*(f"layer4.1.{k}" for k in inside), "fc.weight", "fc.bias")


@pytest.mark.parametrize("granularity", ["listed", "layer"])
def test_layers_of_a_residual_network_are_its_convolutions_with_their_norms(granularity: Granularity) -> None:
    """ResNet-18: 17 convolutions, 3 shortcuts, the classifier."""
    module = resnet18(IMAGE, 3, width=4)
    units = units_of(module, granularity)
    assert len(units) == 21
    assert units[1] == ("layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias")
    assert units[-1] == ("fc.weight", "fc.bias")
    assert whole(module, units)


class Plain(nn.Module):
    """A plain network whose children have given names, such as a CNN."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def pair(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3), nn.BatchNorm2d(after), nn.ReLU())


def test_layers_without_blocks_are_modules_but_have_no_blocks() -> None:
    module = Plain(layer1=pair(1, 2), layer2=pair(2, 3), fc=nn.Linear(3, 2))
    assert parts(units_of(module, "module"), 1) == [{"layer1"}, {"layer2", "fc"}]
    with pytest.raises(RequestError, match=r"Plain has no such units. It has: listed, layer, module. "):
        units_of(module, "block")


def test_what_is_beside_the_layers_goes_with_the_one_before_and_nothing_is_empty() -> None:
    """A stem called layer0, parameters of the module itself, something between, blocks without parameters."""
    module = Plain(
        layer0=pair(1, 2),
        layer1=nn.Sequential(Basic(2, 2), nn.Dropout(0.1), Basic(2, 2)),
        between=nn.Conv2d(2, 2, 1),
        layer2=nn.Sequential(nn.Sequential(nn.ReLU()), Basic(2, 2)),
        norm=nn.BatchNorm2d(2),
        fc=nn.Linear(2, 2),
    )
    module.register_parameter("scale", nn.Parameter(torch.ones(1)))
    first, second = units_of(module, "module")
    assert {k.split(".")[0] for k in first} == {"scale", "layer0", "layer1", "between"}
    assert {k.split(".")[0] for k in second} == {"layer2", "norm", "fc"}
    blocks = units_of(module, "block")
    assert [next(k for k in unit if "conv2" in k) for unit in blocks] == [
        "layer1.0.conv2.weight", "layer1.2.conv2.weight", "layer2.1.conv2.weight"
    ]  # fmt: skip
    assert "between.weight" in blocks[1]
    assert {"norm.weight", "fc.bias"} <= set(blocks[2])
    assert whole(module, units_of(module, "module"))
    assert whole(module, blocks)


def test_a_tied_parameter_is_in_the_unit_of_its_first_name() -> None:
    module = resnet18(IMAGE, 3, width=4)
    layers: Any = module
    layers.layer4[1].conv2.weight = layers.layer4[0].conv2.weight
    assert "layer4.0.conv2.weight" in units_of(module, "block")[6]
    for granularity in ("layer", "module", "block"):
        assert whole(module, units_of(module, granularity))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        Plain(layer1=pair(1, 2), fc=nn.Linear(2, 2)),
        Plain(layer1=nn.Linear(2, 2), layer2=nn.Linear(2, 2)),
        Plain(layer2=pair(1, 2), layer1=pair(2, 2)),
        Plain(layer1=pair(1, 2), layer3=pair(2, 2)),
        Plain(backbone=resnet18(IMAGE, 3, width=4)),
    ],
    ids=["no names", "one layer", "no sequences", "wrong order", "a gap", "deeper"],
)
@pytest.mark.parametrize("granularity", ["module", "block"])
def test_other_modules_have_neither_modules_nor_blocks(module: nn.Module, granularity: Granularity) -> None:
    with pytest.raises(RequestError) as caught:
        units_of(module, granularity)
    message = str(caught.value)
    assert f"units = '{granularity}': {type(module).__name__} has no such units." in message
    assert "It has: listed, layer." in message
    assert 'self.units = {"block": [["stem", "blocks.0"], ["blocks.1", "fc"]]}' in message


def test_a_misspelt_granularity_is_corrected() -> None:
    wrong: Any = "blocks"
    with pytest.raises(RequestError, match=r"units = 'blocks'.* Did you mean 'block'\?"):
        from_module(resnet18(IMAGE, 3, width=4), units=wrong)


class Listed(nn.Module):
    """Three layers and an attribute `units`."""

    def __init__(self, units: object) -> None:
        super().__init__()
        self.stem, self.body, self.fc = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.units: Any = units

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.body(self.stem(x)))
        return y


MAPPING = {"module": [["stem"], ["body", "fc"]], "block": [["stem", "body"], ["fc"]]}
STEM, BODY, FC = (("stem.weight", "stem.bias"), ("body.weight", "body.bias"), ("fc.weight", "fc.bias"))


@pytest.mark.parametrize(
    ("units", "granularity", "expected"),
    [
        (MAPPING, "module", (STEM, BODY + FC)),
        (MAPPING, "block", (STEM + BODY, FC)),
        (MAPPING, "layer", (STEM, BODY, FC)),
        (MAPPING, "listed", (STEM, BODY + FC)),
        ({**MAPPING, "layer": [["stem", "body", "fc"]]}, "listed", (STEM + BODY + FC,)),
        ({**MAPPING, "layer": [["stem", "body", "fc"]]}, "layer", (STEM + BODY + FC,)),
        ([["stem", "body"], ["fc"]], "listed", (STEM + BODY, FC)),
        ([["stem", "body"], ["fc"]], "layer", (STEM, BODY, FC)),
        (64, "listed", (STEM, BODY, FC)),
        ([64, 32], "layer", (STEM, BODY, FC)),
    ],
)
def test_a_module_may_list_its_units_by_granularity(
    units: object, granularity: Granularity, expected: Units
) -> None:
    """A plain list has granularity "listed" only; an attribute that is a number is ignored."""
    assert units_of(Listed(units), granularity) == expected


def test_a_list_goes_before_the_structure() -> None:
    module: Any = resnet18(IMAGE, 3, width=4)
    module.units = {"module": [["conv1", "bn1", "layer1", "layer2"], ["layer3", "layer4", "fc"]]}
    assert len(units_of(module, "module")) == 2
    assert len(units_of(module, "block")) == 8


@pytest.mark.parametrize(
    ("units", "granularity", "message"),
    [
        (MAPPING | {"stage": [["stem", "body", "fc"]]}, "block", "the keys may be layer, module, block"),
        ({}, "listed", "the keys may be layer, module, block, at least one of them"),
        (
            {"module": [["stem"], ["fc"]]},
            "module",
            r"units \(module\) must hold every parameter exactly once",
        ),
        ({"module": MAPPING["module"]}, "block", "Listed has no such units. It has: listed, layer, module. "),
        ([["stem", "body"], ["fc"]], "block", "It has: listed, layer. "),
        ([64, 32], "listed", r"units = \[64, 32\] \(listed\): need a list of names for each unit"),
        ({"block": ["stem", "body", "fc"]}, "block", r"need a list of names for each unit"),
        ({"block": 3}, "block", r"units = 3 \(block\): need a list of names for each unit"),
    ],
)
def test_wrong_lists_are_refused(units: object, granularity: Granularity, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        units_of(Listed(units), granularity)


@pytest.mark.parametrize(("granularity", "count"), [("layer", 21), ("module", 4), ("block", 8)])
def test_a_user_s_schedule_gets_the_units_of_the_granularity(granularity: Granularity, count: int) -> None:
    """Only the first unit trains, so exactly its leaves change on the server; there are `count` units."""
    seen = set()

    def first_only(clock: Clock, units: int) -> Mask:
        seen.add(units)
        return tuple(unit == 0 for unit in range(units))

    module = seeded(lambda: resnet18((1, 4, 4), CLASSES, width=4), 0)
    model, data = from_module(module, units=granularity), federation()
    start = model.init(0)[0]
    algorithm = replace(fedavg(), schedule=first_only)
    local = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2))
    shared = train_rounds(algorithm, local, Sequential(model, data), model, data, [[0, 1, 2, 3]]).shared
    assert {k for k, v in shared.items() if not torch.equal(v, start[k].double())} == set(model.units[0])
    assert seen == {count}
