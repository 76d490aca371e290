"""A function of trees of tensors as one compiled program that changes its first argument in place.

The function is run once on shapes alone and what it does is written down, operator by operator, with vmap and
gradients already carried out; that list is compiled. Nothing is guarded: the caller hands in tensors of
the same shapes and layouts every time.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from kedge.engines.cuda.frozen_inputs import make_frozen_inputs
from kedge.engines.cuda.rewriting import rewritten
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


def without_advice() -> None:
    """Do not show what torch's compiler advises: on its own code, on ours, or on the precision asked for."""
    for message in ADVICE:
        warnings.filterwarnings("ignore", message)


def traced(function: Callable[..., Any], *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    """A program of arguments like these: the first one's tensors become those of function(*arguments)."""
    return compiled(written_down(function, *arguments), *arguments, repeatable=repeatable)


def written_down(function: Callable[..., Any], *arguments: Any) -> GraphModule:
    """The operators of it, one after another."""
    flat, form = tree_flatten(arguments)

    def written(*values: Tensor) -> tuple[()]:
        own = tree_unflatten(values, form)
        after = function(*own)
        before, shape = tree_flatten(own[0])
        new, other = tree_flatten(after)
        assert shape == other
        for old, fresh in zip(before, new, strict=True):
            old.copy_(fresh)
        return ()

    return rewritten(operator_graph(written, flat))


def compares_floats(graph: GraphModule) -> bool:
    """Whether a program compares floating-point numbers for equality, as the gradient of `amax` does.

    The compiler computes a value once for its maximum and again for the comparison, and leaves out the
    rounding to bfloat16 in between: then no value equals the maximum, and the gradient is 0 or NaN. Such
    programs are compiled with every intermediate rounding.
    """
    equal = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor)
    values = [node.args[0].meta.get("val") for node in equal]  # inserted nodes have no value
    return any(value is None or value.is_floating_point() for value in values)


def compiled(graph: GraphModule, *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    """The operators as a program.

    `repeatable`: sums are cut as the shapes say, not as a trial of the moment finds fastest, so that every
    process gets the same bits.
    """
    # Here and not above: a program that compiles nothing need not wait for torch's compiler to be read in.
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # With an (empty) environment of shapes, without which torch does not keep programs on disk.
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    frozen = make_frozen_inputs(graph)
    like: list[Any] = [shapes.from_tensor(v) for v in (*tree_leaves(arguments), *frozen)]
    settings = compiler_options(deterministic=repeatable, emulate_precision_casts=compares_floats(graph))
    with warnings.catch_warnings(), tracing(TracingContext(shapes)), settings:
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, about its own deprecated parts
        without_advice()
        program = compile_graph(graph, like)

    def run(*own: Any) -> None:
        program(*tree_leaves(own), *frozen)

    return run
