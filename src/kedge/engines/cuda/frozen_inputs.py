"""Turn the frozen parameters of a traced program into inputs.

A traced program contains the frozen parameters of its model (core/frozen.py) as constants. A compiler hashes
and stores every element of a constant: this is slow for a large backbone, and the program then fits only that
backbone. An input is only read. Parameters that the program uses in bfloat16 are rounded here once, not in
every step.
"""

from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import Parameter

from kedge.engines.cuda.rewriting import apply_chain
from kedge.engines.cuda.rounding import HALF, inputs, roundings


def make_frozen_inputs(module: GraphModule) -> list[Tensor]:
    """Make the frozen parameters of the program its last inputs, and return their values."""
    graph = module.graph
    values: list[Tensor] = []
    placeholders: dict[tuple[int, bool], Node] = {}

    def input_for(value: Tensor, rounded: bool) -> Node:
        key = id(value), rounded
        if key not in placeholders:
            with graph.inserting_after(inputs(module)[-1]):
                placeholders[key] = graph.placeholder(f"frozen_{len(values)}")
            values.append(value.detach().to(HALF) if rounded else value.detach())
        return placeholders[key]

    for node in read_parameters(module):
        for rounding, transposes in roundings(node):
            copy = input_for(getattr(module, node.target), True)
            with graph.inserting_before(rounding):
                rounding.replace_all_uses_with(apply_chain(module, transposes, copy))
            graph.erase_node(rounding)
    graph.eliminate_dead_code()
    for node in read_parameters(module):
        node.replace_all_uses_with(input_for(getattr(module, node.target), False))
        graph.erase_node(node)
    module.recompile()
    return values


def read_parameters(module: GraphModule) -> list[Any]:
    """The nodes that read a frozen parameter."""
    nodes: list[Any] = list(module.graph.find_nodes(op="get_attr"))
    return [node for node in nodes if isinstance(getattr(module, node.target), Parameter)]
