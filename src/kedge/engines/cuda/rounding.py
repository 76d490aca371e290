"""Weights that are computed with in bfloat16 have a copy in it that moves with them.

In mixed precision weights are kept in float32 and rounded for every product. A program that rounds them
where it moves them, and reads the copies in its next step, need not read all of them once more. The copies
hold the very numbers that the rounding would give.
"""

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from kedge.engines.cuda.rewriting import again, aten, calls

HALF = torch.bfloat16
TURNS = {aten.permute.default, aten.transpose.int, aten.t.default}


def rounded(module: GraphModule, first: int) -> list[int]:
    """The numbers of those of the first inputs that are rounded."""
    return [number for number, own in enumerate(inputs(module)[:first]) if roundings(own)]


def reading_copies(module: GraphModule, which: Sequence[int]) -> GraphModule:
    """The same program of these inputs' copies, too, which come after all other inputs."""
    graph, given = module.graph, inputs(module)
    moved = {node.args[0]: node for node in calls(module, aten.copy_.default)}
    last = given[-1]
    for number in which:
        own = given[number]
        with graph.inserting_after(last):
            last = copy = graph.placeholder(f"copy_of_{own.name}")
        for node, turns in roundings(own):
            with graph.inserting_before(node):
                node.replace_all_uses_with(again(module, turns, copy))
            graph.erase_node(node)
        if own in moved:
            with graph.inserting_after(moved[own]):
                value = graph.call_function(aten._to_copy.default, (moved[own].args[1],), {"dtype": HALF})
            with graph.inserting_after(value):
                graph.call_function(aten.copy_.default, (copy, value))
    graph.eliminate_dead_code()
    module.recompile()
    return module


def roundings(own: Node) -> list[tuple[Node, list[Node]]]:
    """Where this is rounded, and how it is turned before, the last turn first."""
    found: list[tuple[Node, list[Node]]] = []
    for node in own.users:
        if node.target is aten._to_copy.default and dict(node.kwargs).get("dtype") == HALF:
            found.append((node, []))
        elif node.target in TURNS:
            found += [(end, [*turns, node]) for end, turns in roundings(node)]
    return found


def inputs(module: GraphModule) -> list[Node]:
    """The program's inputs, in order."""
    return list(module.graph.find_nodes(op="placeholder"))
