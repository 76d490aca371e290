"""Compile a function of trees of tensors into one program that updates its first argument in place.

The function is traced once with fake tensors. The traced graph has ATen operators only: vmap and autograd are
resolved. Inductor compiles this graph without guards, so the caller must pass tensors of the same shapes and
strides at every call.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from kedge.engines.cuda.frozen_inputs import make_frozen_inputs
from kedge.engines.cuda.rewriting import rewrite
from kedge.torch_private import (
    FakeTensorMode,
    TracingContext,
    compile_graph,
    compiler_options,
    operator_graph,
    tracing,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

ADVICE = r"\s*Online softmax is disabled", "TensorFloat32 tensor cores", r"`torch\.jit\."


def hide_compiler_advice() -> None:
    """Hide the warnings in which torch's compiler gives advice."""
    for message in ADVICE:
        warnings.filterwarnings("ignore", message)


def trace_program(
    function: Callable[..., Any], *arguments: Any, repeatable: bool = True
) -> Callable[..., None]:
    """Compile `function` for arguments of these shapes, with the result written to its first argument."""
    return compile_operators(trace_operators(function, *arguments), *arguments, repeatable=repeatable)


def trace_operators(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """The graph of the operators that `function` calls, and of the copies into its first argument."""
    leaves, structure = tree_flatten(arguments)

    def update_first(*values: Tensor) -> tuple[()]:
        arguments = tree_unflatten(values, structure)
        result = function(*arguments)
        targets, argument_structure = tree_flatten(arguments[0])
        sources, result_structure = tree_flatten(result)
        assert result_structure == argument_structure
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        return ()

    return rewrite(operator_graph(update_first, leaves))


def compares_floats(graph: GraphModule) -> bool:
    """Whether a program compares floating-point numbers for equality, as the gradient of `amax` does.

    The compiler computes a value once for its maximum and again for the comparison, and leaves out the
    rounding to bfloat16 in between: then no value equals the maximum, and the gradient is 0 or NaN. Such
    programs are compiled with every intermediate rounding.
    """
    equal = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor)
    values = [node.args[0].meta.get("val") for node in equal]  # inserted nodes have no value
    return any(value is None or value.is_floating_point() for value in values)


def compile_operators(graph: GraphModule, *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    """Compile the graph with Inductor.

    `repeatable`: kernels are configured by shape and not by timing, so every process gets the same bits.
    """
    # Imported here, because a run that compiles nothing should not wait for this import.
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Without a shape environment, torch does not store compiled programs on disk.
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    frozen = make_frozen_inputs(graph)
    fake_inputs: list[Any] = [shapes.from_tensor(v) for v in (*tree_leaves(arguments), *frozen)]
    settings = compiler_options(deterministic=repeatable, emulate_precision_casts=compares_floats(graph))
    with warnings.catch_warnings(), tracing(TracingContext(shapes)), settings:
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        hide_compiler_advice()
        program = compile_graph(graph, fake_inputs)

    def run(*arguments: Any) -> None:
        program(*tree_leaves(arguments), *frozen)

    return run
