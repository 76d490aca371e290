"""Units: the groups of parameters that a schedule freezes, from the input side to the head.

Every parameter is in exactly one unit, except for parameters with requires_grad=False (`trainable_units`). A
layer with only such parameters is no unit.

A module has units at up to three granularities. "layer": each layer with parameters. "module" and "block":
only for residual networks, whose children layer1, layer2, … are nn.Sequential of blocks. Their modules are
{stem, layer1} | layer2 | … | {last layer, classifier}; their blocks are divided in the same way.
A module may list its units itself: `units = [["stem", "blocks.0"], ["blocks.1", "fc"]]`, the names of modules
or parameters in each unit, or `units = {"layer": […], "block": […]}`, one such list per granularity.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from torch import nn

from kedge.core.errors import RequestError, nearest
from kedge.torch_private import AnyBatchNorm, AnyInstanceNorm

Granularity = Literal["listed", "layer", "module", "block"]  # "listed": the module's own list, else "layer"
Units = tuple[tuple[str, ...], ...]

KINDS = ("layer", "module", "block")
NORMS = (
    AnyBatchNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    AnyInstanceNorm,
)


def units_of(module: nn.Module, granularity: Granularity = "listed") -> Units:
    """The names of the parameters in each unit; a list in the module overrides its structure."""
    lists, boundaries = unit_lists(module), residual_boundaries(module)
    if granularity in lists:
        return listed_units(module, granularity, lists[granularity])
    if granularity in boundaries:
        return units_between(module, boundaries[granularity])
    if granularity in ("listed", "layer"):
        return layer_units(module)
    known = list(dict.fromkeys(["listed", "layer", *boundaries, *lists]))
    raise RequestError(
        f"units = {granularity!r}: {type(module).__name__} has no such units.{nearest(granularity, known)} "
        f"It has: {', '.join(known)}. Residual networks whose children layer1, layer2, … are nn.Sequential "
        'have "module", and "block" where these hold blocks; any module may list its own: '
        'self.units = {"block": [["stem", "blocks.0"], ["blocks.1", "fc"]]}.'
    )


def trainable_units(units: Units, frozen: Collection[str]) -> Units:
    """The units without their frozen parameters; units that are then empty are dropped."""
    kept = (tuple(k for k in unit if k not in frozen) for unit in units)
    return tuple(unit for unit in kept if unit)


def check_trainable(module: nn.Module) -> None:
    """Raise RequestError if no parameter of the module trains."""
    parameters = list(module.parameters())
    if not parameters:
        raise RequestError(f"{type(module).__name__} has no parameters: there is nothing to train.")
    if not any(p.requires_grad for p in parameters):
        raise RequestError(
            f"{type(module).__name__}: all {len(parameters)} parameters have requires_grad=False, so nothing "
            "would train. Set requires_grad=True for at least one, as in module.fc.requires_grad_(True)."
        )


def unit_lists(module: nn.Module) -> dict[str, Sequence[Sequence[str]]]:
    """The units that the module lists in its attribute `units`, by granularity; empty if it lists none."""
    units = getattr(module, "units", None)
    if isinstance(units, list | tuple):
        return {"listed": units}
    if not isinstance(units, Mapping):
        return {}
    if not units or not set(units) <= set(KINDS):
        raise RequestError(
            f"{type(module).__name__}.units lists units for {list(units)}: "
            f"the keys may be {', '.join(KINDS)}, at least one of them."
        )
    return {"listed": units.get("layer", next(iter(units.values()))), **units}


def listed_units(module: nn.Module, granularity: str, lists: Sequence[Sequence[str]]) -> Units:
    """The parameters of each unit in `lists`, the module's own lists of names of modules or parameters."""
    nested = isinstance(lists, list | tuple) and all(isinstance(unit, list | tuple) for unit in lists)
    if not nested or not all(isinstance(name, str) for unit in lists for name in unit):
        raise RequestError(
            f"{type(module).__name__}.units = {lists!r} ({granularity}): need a list of names for each unit, "
            'as in [["stem", "blocks.0"], ["fc"]]. If this attribute is about something else, '
            'use units = "layer".'
        )
    names = [k for k, _ in module.named_parameters()]
    units = tuple(
        tuple(k for k in names if any(k == u or k.startswith(u + ".") for u in unit)) for unit in lists
    )
    used = [k for unit in units for k in unit]
    if sorted(used) != sorted(names) or not all(units):
        missing, twice = sorted(set(names) - set(used)), sorted({k for k in used if used.count(k) > 1})
        raise RequestError(
            f"{type(module).__name__}.units ({granularity}) must hold every parameter exactly once and no "
            f"empty unit: missing {missing}, twice {twice}, units {units}."
        )
    return units


def layer_units(module: nn.Module) -> Units:
    """One unit for each layer with parameters, in order; a norm layer belongs to the layer before it."""
    names = {k for k, _ in module.named_parameters()}
    units: list[list[str]] = []
    after_first_norm = False  # a norm in front of all layers is in one unit with the layer after it
    for prefix, layer in module.named_modules():
        leaves = [f"{prefix}.{k}" if prefix else k for k, _ in layer.named_parameters(recurse=False)]
        leaves = [k for k in leaves if k in names]
        if not leaves:
            continue
        norm = isinstance(layer, NORMS)
        if units and (norm or after_first_norm):
            units[-1] += leaves
        else:
            units.append(leaves)
        after_first_norm = norm and len(units) == 1 and units[0] == leaves
    return tuple(tuple(unit) for unit in units)


def residual_boundaries(module: nn.Module) -> dict[str, list[str]]:
    """The submodules of a residual network that start a unit: its layers, and its blocks; else nothing."""
    layers = {
        name: child
        for name, child in module.named_children()
        if re.fullmatch(r"layer[1-9]\d*", name) and isinstance(child, nn.Sequential)
    }
    if len(layers) < 2 or list(layers) != [f"layer{number}" for number in range(1, len(layers) + 1)]:
        return {}
    blocks = {
        f"{layer}.{name}": block
        for layer, child in layers.items()
        for name, block in child.named_children()
        if any(True for _ in block.parameters())
    }
    # A layer1 of convolutions and norms, as in many plain CNNs, has no blocks.
    composed = bool(blocks) and all(any(True for _ in block.children()) for block in blocks.values())
    return {"module": list(layers), **({"block": list(blocks)} if composed else {})}


def units_between(module: nn.Module, boundaries: Sequence[str]) -> Units:
    """One unit per submodule in `boundaries`, with the parameters up to the next; the first has the stem."""
    units: list[list[str]] = [[] for _ in boundaries]
    current = 0
    for name, _ in module.named_parameters():
        current = next((n for n, start in enumerate(boundaries) if name.startswith(start + ".")), current)
        units[current].append(name)
    return tuple(tuple(unit) for unit in units if unit)
