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
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


def traced(function: Callable[..., Any], *arguments: Any, repeatable: bool = True) -> Callable[..., None]:
    """A program of arguments like these: the first one's tensors become those of function(*arguments).

    `repeatable`: sums are cut as the shapes say, not as a trial of the moment finds fastest, so that every
    process gets the same bits.
    """
    # Here and not above: a program that compiles nothing need not wait for torch's compiler to be read in.
    from torch import _inductor
    from torch._inductor import config
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

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

    graph = without_idle_copies(make_fx(written, tracing_mode="fake", _allow_non_fake_inputs=True)(*flat))
    # With an (empty) environment of shapes, without which torch does not keep programs on disk.
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    like: list[Any] = [shapes.from_tensor(v) for v in flat]
    settings = config.patch(deterministic=repeatable)
    with warnings.catch_warnings(), tracing(TracingContext(shapes)), settings:
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, about its own deprecated parts
        program = _inductor.compile(graph, like)

    def run(*own: Any) -> None:
        program(*tree_leaves(own))

    return run


def without_idle_copies(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Tensors that the function hands through are not copied onto themselves."""
    through = {torch.ops.aten.alias.default, torch.ops.aten.detach.default, torch.ops.aten.view.default}
    for node in list(module.graph.nodes):
        if node.target is not torch.ops.aten.copy_.default:
            continue
        into, value = node.args
        while isinstance(value, torch.fx.Node) and value.target in through:
            value = value.args[0]
        if value is into:
            node.replace_all_uses_with(into)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module
