"""Simplify a traced graph in ways that Inductor does not, before Inductor compiles it."""

from typing import Any

import torch
from torch.fx import GraphModule, Node

import kedge.nn.gpu.operators  # noqa: F401  # defines torch.ops.kedge

aten = torch.ops.aten
VIEWS = {aten.alias.default, aten.detach.default, aten.view.default}
LAYOUTS = {aten.permute.default, aten._to_copy.default}  # change the order or dtype of the values only


def rewrite(module: GraphModule) -> GraphModule:
    """Apply all simplifications to the graph, and return it."""
    remove_idle_copies(module)
    remove_padding(module)
    fix_layouts(module)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def remove_idle_copies(module: GraphModule) -> None:
    """Remove copies of a tensor onto itself, which come from inputs that the function returns unchanged."""
    for node in calls(module, aten.copy_.default):
        target, value = node.args
        while isinstance(value, Node) and value.target in VIEWS:
            value = value.args[0]
        if value is target:
            node.replace_all_uses_with(target)
            module.graph.erase_node(node)


def remove_padding(module: GraphModule) -> None:
    """Compute sums of squares before zero padding instead of after it: the sums are equal.

    The gradient of a kernel whose window is larger than the image is padded (convolution.py). torch's
    compiler would compute the sum over the large padded tensor with one thread block per client.
    """
    for total in calls(module, aten.sum.dim_IntList):
        outer = layout_chain(total.args[0])
        square = outer[-1].args[0] if outer else total.args[0]
        if not (is_call(square, aten.mul.Tensor) and square.args[0] is square.args[1]):
            continue
        inner = layout_chain(square.args[0])
        padded = inner[-1].args[0] if inner else square.args[0]
        if not (is_call(padded, aten.constant_pad_nd.default) and not any(padded.args[2:])):
            continue  # not padded with zeros
        if not sums_padded_axes(padded, outer + inner, total.args[1]):
            continue  # the shape of the sum would change
        with module.graph.inserting_before(total):
            value = apply_chain(module, inner, padded.args[0])
            value = module.graph.call_function(aten.mul.Tensor, (value, value))
            total.replace_input_with(total.args[0], apply_chain(module, outer, value))


def sums_padded_axes(padded: Node, layouts: list[Any], summed: list[int]) -> bool:
    """Whether a sum over the axes `summed` includes all axes of `padded` that are padded.

    `layouts` are the operators between padding and sum, the last one first. False if `padded` crops an axis,
    by negative padding.
    """
    widths: Any = padded.args[1]
    dim = padded.meta["val"].dim()
    order = list(range(dim))  # the axis of `padded` that is at each position after the layouts
    for layout in reversed(layouts):
        if layout.target is aten.permute.default:
            order = [order[axis] for axis in layout.args[1]]
    padded_axes = {dim - 1 - k // 2 for k, width in enumerate(widths) if width}  # widths: last axis first
    return min(widths) >= 0 and padded_axes <= {order[axis] for axis in summed}


def fix_layouts(module: GraphModule) -> None:
    """Make the gradients of convolutions of 1×1 images contiguous.

    The memory format of a 1×1 image is ambiguous: torch's compiler assumes channels last, cuDNN in float32
    returns contiguous gradients, and the compiled program would fail at its first call.
    """
    for node in calls(module, aten.convolution_backward.default):
        if all(size == 1 for size in node.args[1].meta["val"].shape[2:]):
            node.target = torch.ops.kedge.contiguous_convolution_backward.default


def layout_chain(node: Any) -> list[Any]:
    """The chain of operators from `node` backwards that change only the order or dtype of values."""
    found: list[Any] = []
    while isinstance(node, Node) and node.target in LAYOUTS:
        found.append(node)
        node = node.args[0]
    return found


def apply_chain(module: GraphModule, chain: list[Any], value: Node) -> Node:
    """Insert calls that apply the operators of `chain` to `value`; return the last."""
    for node in reversed(chain):
        value = module.graph.call_function(node.target, (value, *node.args[1:]), dict(node.kwargs))
    return value


def calls(module: GraphModule, target: Any) -> list[Any]:
    """All calls of the operator `target`."""
    return list(module.graph.find_nodes(op="call_function", target=target))


def is_call(node: Any, target: Any) -> bool:
    """Whether `node` is a call of the operator `target`."""
    return isinstance(node, Node) and node.target is target
