"""Keep a bfloat16 copy of each float32 weight; the step that updates the weight also updates the copy.

In mixed precision, weights are stored in float32 and rounded to bfloat16 for each product. A step that writes
the rounded copy together with the weight saves the next step the pass that reads and rounds all weights. The
copies have exactly the values that rounding would give.
"""

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from kedge.engines.cuda.rewriting import apply_chain, aten, calls

HALF = torch.bfloat16
TRANSPOSES = {aten.permute.default, aten.transpose.int, aten.t.default}


def rounded_inputs(module: GraphModule, first: int) -> list[int]:
    """The positions of the inputs, among the first `first`, that the program rounds to bfloat16."""
    return [number for number, node in enumerate(inputs(module)[:first]) if roundings(node)]


def read_copies(module: GraphModule, positions: Sequence[int]) -> GraphModule:
    """Add an input for the bfloat16 copy of each input in `positions`; the program reads and updates it."""
    graph, placeholders = module.graph, inputs(module)
    updates = {node.args[0]: node for node in calls(module, aten.copy_.default)}
    last = placeholders[-1]
    for position in positions:
        weight = placeholders[position]
        with graph.inserting_after(last):
            last = copy = graph.placeholder(f"copy_of_{weight.name}")
        for node, transposes in roundings(weight):
            with graph.inserting_before(node):
                node.replace_all_uses_with(apply_chain(module, transposes, copy))
            graph.erase_node(node)
        if weight in updates:
            update = updates[weight]
            with graph.inserting_after(update):
                value = graph.call_function(aten._to_copy.default, (update.args[1],), {"dtype": HALF})
            with graph.inserting_after(value):
                graph.call_function(aten.copy_.default, (copy, value))
    graph.eliminate_dead_code()
    module.recompile()
    return module


def roundings(node: Node) -> list[tuple[Node, list[Node]]]:
    """The nodes that round `node` to bfloat16, each with the transposes between, the last transpose first."""
    found: list[tuple[Node, list[Node]]] = []
    for user in node.users:
        if user.target is aten._to_copy.default and dict(user.kwargs).get("dtype") == HALF:
            found.append((user, []))
        elif user.target in TRANSPOSES:
            found += [(rounding, [*transposes, user]) for rounding, transposes in roundings(user)]
    return found


def inputs(module: GraphModule) -> list[Node]:
    """The placeholders of the graph, in order."""
    return list(module.graph.find_nodes(op="placeholder"))
