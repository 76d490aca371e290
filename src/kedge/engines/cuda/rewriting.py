"""What is changed in a list of operators before it is compiled, because the compiler does not see it."""

from typing import Any

import torch
from torch.fx import GraphModule, Node

import kedge.nn.gpu.operators  # noqa: F401  # defines torch.ops.kedge

aten = torch.ops.aten
THROUGH = {aten.alias.default, aten.detach.default, aten.view.default}
LAID = {aten.permute.default, aten._to_copy.default}  # the same values, perhaps in another order or dtype


def rewritten(module: GraphModule) -> GraphModule:
    """The same without what need not be done."""
    without_idle_copies(module)
    without_padding(module)
    with_known_layouts(module)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def without_idle_copies(module: GraphModule) -> None:
    """Tensors that the function hands through are not copied onto themselves."""
    for node in calls(module, aten.copy_.default):
        into, value = node.args
        while isinstance(value, Node) and value.target in THROUGH:
            value = value.args[0]
        if value is into:
            node.replace_all_uses_with(into)
            module.graph.erase_node(node)


def without_padding(module: GraphModule) -> None:
    """Sums of squares of what is padded with 0 become those of what is not: they are the same.

    Kernels whose window is larger than the image have such gradients (convolution.py), and torch's compiler
    leaves the sum over a large padded tensor to one program for each client.
    """
    for total in calls(module, aten.sum.dim_IntList):
        laid = chain(total.args[0])
        square = laid[-1].args[0] if laid else total.args[0]
        if not (is_call(square, aten.mul.Tensor) and square.args[0] is square.args[1]):
            continue
        inner = chain(square.args[0])
        padded = inner[-1].args[0] if inner else square.args[0]
        if not (is_call(padded, aten.constant_pad_nd.default) and not any(padded.args[2:])):
            continue
        dim = padded.meta["val"].dim()
        order = list(range(dim))
        for one in reversed(laid + inner):
            if one.target is aten.permute.default:
                order = [order[axis] for axis in one.args[1]]
        wider = {dim - 1 - k // 2 for k, more in enumerate(padded.args[1]) if more}
        if min(padded.args[1]) < 0 or not wider <= {order[axis] for axis in total.args[1]}:
            continue  # cut off instead, or more values than without padding come out
        with module.graph.inserting_before(total):
            value = again(module, inner, padded.args[0])
            value = module.graph.call_function(aten.mul.Tensor, (value, value))
            total.replace_input_with(total.args[0], again(module, laid, value))


def with_known_layouts(module: GraphModule) -> None:
    """Gradients of convolutions of one-pixel images are contiguous.

    The memory format of such an image is ambiguous. torch's compiler takes it for channels last, cuDNN in
    float32 for contiguous, and the compiled program fails at its first call.
    """
    for node in calls(module, aten.convolution_backward.default):
        if all(size == 1 for size in node.args[1].meta["val"].shape[2:]):
            node.target = torch.ops.kedge.contiguous_convolution_backward.default


def chain(node: Any) -> list[Any]:
    """The operators that only lay values out, from this one backwards."""
    found: list[Any] = []
    while isinstance(node, Node) and node.target in LAID:
        found.append(node)
        node = node.args[0]
    return found


def again(module: GraphModule, chain: list[Any], value: Node) -> Node:
    """The operators of a chain on another value."""
    for one in reversed(chain):
        value = module.graph.call_function(one.target, (value, *one.args[1:]), dict(one.kwargs))
    return value


def calls(module: GraphModule, target: Any) -> list[Any]:
    """All calls of an operator."""
    return list(module.graph.find_nodes(op="call_function", target=target))


def is_call(node: Any, target: Any) -> bool:
    """Whether the node is a call of this operator."""
    return isinstance(node, Node) and node.target is target
