"""The private names of torch that kedge uses; no other module uses any.

A new version of torch may change them: tests/test_torch_private.py finds out. Importing this module needs no
GPU and does not import torch's compiler; the functions that need the compiler import it when called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch._C._functorch import (
    CInterpreter,
    TransformType,
    get_unwrapped,
    is_batchedtensor,
    is_gradtrackingtensor,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import coerce_cinterpreter
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.nn.modules.activation import _is_make_fx_tracing
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.nn.modules.dropout import _DropoutNd as AnyDropout
from torch.nn.modules.instancenorm import _InstanceNorm as AnyInstanceNorm
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

__all__ = [
    "AnyBatchNorm",
    "AnyDropout",
    "AnyInstanceNorm",
    "CInterpreter",
    "DeviceType",
    "FakeTensorMode",
    "TorchDispatchMode",
    "TracingContext",
    "TransformType",
    "coerce_cinterpreter",
    "compile_graph",
    "compiler_options",
    "dynamo_config",
    "foreach_add",
    "foreach_copy_",
    "foreach_div",
    "foreach_norm",
    "forward_pre_hooks",
    "get_unwrapped",
    "has_dispatch_mode",
    "is_batchedtensor",
    "is_gradtrackingtensor",
    "is_make_fx_tracing",
    "operator_graph",
    "peek_interpreter_stack",
    "set_vmap_fallback_warning",
    "trace_random_functions",
    "tracing",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]

# Functions of lists of tensors: one launch on a GPU.
foreach_add = torch._foreach_add
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_norm = torch._foreach_norm

FUNCTORCH: Any = torch._C._functorch  # torch's stubs lack the next name
# Switches the warning that vmap computes an operator without a batching rule row by row.
set_vmap_fallback_warning: Callable[[bool], None] = FUNCTORCH._set_vmap_fallback_warning_enabled


def is_make_fx_tracing() -> bool:
    """Whether make_fx is tracing now."""
    return bool(_is_make_fx_tracing())  # type: ignore[no-untyped-call]  # torch leaves it untyped


def has_dispatch_mode() -> bool:
    """Whether a TorchDispatchMode is active, such as a counter of operators."""
    return _get_current_dispatch_mode() is not None


def forward_pre_hooks(module: nn.Module) -> Iterable[Any]:
    """The forward pre-hooks of a module."""
    return module._forward_pre_hooks.values()


def operator_graph(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """The ATen operators that `function` calls on tensors like `inputs`, traced without computing them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def compile_graph(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The graph compiled by Inductor for inputs like these."""
    import torch._inductor

    program: Callable[..., Any] = torch._inductor.compile(graph, inputs)
    return program


def compiler_options(**options: Any) -> AbstractContextManager[None]:
    """A context that sets options of Inductor."""
    from torch._inductor import config

    patch: AbstractContextManager[None] = config.patch(**options)
    return patch


def dynamo_config() -> Any:
    """The settings of torch.compile's tracer; they are kept for each thread."""
    import torch._dynamo

    return torch._dynamo.config


def trace_random_functions() -> None:
    """Let torch.compile trace random functions under a TorchFunctionMode that replaces them."""
    from torch._dynamo.variables.torch import get_overridable_functions

    get_overridable_functions().update({torch.rand_like, torch.randn_like, torch.normal})
