"""torch's random functions in a forward pass, replaced by functions of the batch's key.

While the mode `KeyedFunctions` is active, a call such as F.dropout or torch.randn computes its numbers from
the key and from the number of the call in the forward pass. The mode composes with vmap, gradients,
torch.compile and make_fx. It makes every torch call a little slower, so only models that call such functions
run under it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves
from kedge.nn import attention
from kedge.nn.keyed import drop, random_words, uniform
from kedge.nn.random_numbers import (
    bernoulli,
    bernoulli_,
    exponential_,
    gaussian,
    new_tensor,
    new_tensor_like,
    normal_,
    normals,
    randint,
    uniform_,
    uniforms,
    zeros_for_empty,
)


class KeyedFunctions(TorchFunctionMode):
    """A mode for one forward pass that replaces torch's random functions by functions of a key."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func in KEYED_FUNCTIONS:
            return KEYED_FUNCTIONS[func](self, *args, **options)
        return func(*args, **options)

    def words(self, shape: Sequence[int]) -> Tensor:
        """Random words of the next call."""
        self.calls += 1
        return random_words(self.key, shape, self.calls, 0)

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """`x` after dropout of single elements with probability `p`."""
        return drop(x, p, self.words(x.shape))


def dropout(
    mode: KeyedFunctions, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """F.dropout."""
    return copy_if_inplace(input, mode.dropped(input, p), inplace) if training and p > 0 else input


def channel_dropout(
    unbatched_dim: int,
    mode: KeyedFunctions,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """F.dropout1d, F.dropout2d and F.dropout3d; inputs with `unbatched_dim` dimensions are single samples."""
    if not training or p == 0:
        return input
    channels = input.shape[:1] if input.dim() == unbatched_dim else input.shape[:2]
    words = mode.words(channels).reshape(*channels, *[1] * (input.dim() - len(channels)))
    return copy_if_inplace(input, drop(input, p, words), inplace)


def copy_if_inplace(x: Tensor, values: Tensor, inplace: bool) -> Tensor:
    """`values`, copied into `x` if `inplace`."""
    return x.copy_(values) if inplace else values


def rrelu(
    mode: KeyedFunctions,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """F.rrelu."""
    slope: Any = (lower + upper) / 2
    if training:
        slope = lower + (upper - lower) * uniform(mode.words(input.shape), input.dtype)
    return copy_if_inplace(input, torch.where(input >= 0, input, slope * input), inplace)


def gumbel_softmax(
    mode: KeyedFunctions,
    logits: Tensor,
    tau: float = 1,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
) -> Tensor:
    """F.gumbel_softmax."""
    tiny = torch.finfo(logits.dtype).tiny
    noise = -torch.log(-torch.log(uniform(mode.words(logits.shape), logits.dtype).clamp_min(tiny)))
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    index = soft.argmax(dim, keepdim=True)
    indices = torch.arange(soft.shape[dim], device=soft.device)
    indices = indices.view([-1 if d == dim % soft.dim() else 1 for d in range(soft.dim())])
    return (indices == index).to(soft.dtype) - soft.detach() + soft


def attention_with_dropout(mode: KeyedFunctions, query: Tensor, *rest: Any, **named: Any) -> Tensor:
    """F.scaled_dot_product_attention; calls torch's function outside a stack if nothing is dropped."""
    p = named.get("dropout_p", rest[3] if len(rest) > 3 else 0.0)
    if not p and not attention.is_stacked(query, *rest[:2]):
        return F.scaled_dot_product_attention(query, *rest, **named)
    return attention.scaled_dot_product_attention(mode.dropped, query, *rest, **named)


def multi_head_with_dropout(mode: KeyedFunctions, *args: Any, **named: Any) -> Any:
    """F.multi_head_attention_forward; calls torch's function if nothing is dropped."""
    p = named.get("dropout_p", args[10] if len(args) > 10 else 0.0)
    training = named.get("training", args[13] if len(args) > 13 else True)
    if not (p and training):
        return F.multi_head_attention_forward(*args, **named)
    return attention.multi_head(mode.dropped, *args, **named)


KEYED_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.dropout: dropout,
    torch.dropout: dropout,
    torch.dropout_: partial(dropout, inplace=True),
    F.dropout1d: partial(channel_dropout, 2),
    F.dropout2d: partial(channel_dropout, 1),
    F.dropout3d: partial(channel_dropout, 4),
    torch.feature_dropout: partial(channel_dropout, 1),
    F.rrelu: rrelu,
    torch.rrelu: rrelu,
    F.gumbel_softmax: gumbel_softmax,
    torch.empty: partial(new_tensor, zeros_for_empty),
    torch.rand: partial(new_tensor, uniforms),
    torch.randn: partial(new_tensor, normals),
    torch.rand_like: partial(new_tensor_like, uniforms),
    torch.randn_like: partial(new_tensor_like, normals),
    torch.randint: randint,
    torch.normal: gaussian,
    torch.bernoulli: bernoulli,
    Tensor.bernoulli: bernoulli,
    Tensor.bernoulli_: bernoulli_,
    Tensor.uniform_: uniform_,
    Tensor.normal_: normal_,
    Tensor.exponential_: exponential_,
    F.scaled_dot_product_attention: attention_with_dropout,
    F.multi_head_attention_forward: multi_head_with_dropout,
}


def with_keyed_functions(model: Model) -> Model:
    """The model whose forward pass runs under `KeyedFunctions` with the batch's key."""

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        with KeyedFunctions(batch.key):
            return model.apply(params, buffers, batch, train)

    return replace(model, apply=apply, random=True)
