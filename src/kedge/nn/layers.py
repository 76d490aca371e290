"""Layers exchanged in a model's private copy, so that it is pure, knows padding, and stacks well.

Batch norm takes its statistics over rows of weight 1 and assigns new running statistics instead of writing
into the old ones; dropout draws from keyed counters, so that every engine drops the same. What a layer
needs beside its input reaches it as a buffer that `Model.apply` puts in for the call.
"""

import copy
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.weight_norm import WeightNorm

from kedge.core.errors import RequestError
from kedge.core.random import torch_words
from kedge.nn.attention import Decoder, Encoder, KeyedAttention, disable_fused_paths
from kedge.nn.gpu.convolution import stacked_convolution
from kedge.nn.gpu.first_layer import pools, stacked_pooled_convolution
from kedge.nn.gpu.operators import stackable
from kedge.nn.gpu.pooling import stacked_pooling
from kedge.nn.keyed import KeyedRReLU
from kedge.nn.normalization import add_float32_hooks
from kedge.nn.recurrent import KeyedGRU, KeyedLSTM, KeyedRNN, PlainGRUCell, PlainLSTMCell, PlainRNNCell
from kedge.torch_private import AnyBatchNorm, AnyDropout, AnyInstanceNorm, forward_pre_hooks


class MaskedBatchNorm(nn.Module):
    """Batch norm over the rows of weight 1; the same as torch's when every weight is 1."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    sample_weight: Tensor
    eps: float
    momentum: float
    frozen_statistics: bool

    def forward(self, x: Tensor) -> Tensor:
        axes = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        tracked = self.running_mean is not None and self.running_var is not None
        if tracked and (not self.training or self.frozen_statistics):
            mean, var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        else:
            weight = self.sample_weight.view([-1] + [1] * (x.dim() - 1))
            count = self.sample_weight.sum() * (x[0, 0].numel() if x.dim() > 2 else 1)
            mean = (weight * x).sum(axes) / count
            var = (weight * (x - mean.view(shape)) ** 2).sum(axes) / count
            if tracked and self.training:
                # torch keeps the unbiased variance; a single value has none and counts as its own.
                unbiased = var.detach() * (count / (count - 1).clamp_min(1))
                keep, take = 1 - self.momentum, self.momentum
                self.running_mean = keep * cast(Tensor, self.running_mean) + take * mean.detach()
                self.running_var = keep * cast(Tensor, self.running_var) + take * unbiased
        factor = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            factor = factor * self.weight
        y = (x - mean.view(shape)) * factor.view(shape)
        return y if self.bias is None else y + self.bias.view(shape)


class StackedConv2d(nn.Conv2d):
    """nn.Conv2d, written so that a stack of clients, each with a kernel of its own, computes it fast.

    torch takes a grouped convolution for that, which is slow. On a GPU it is one program (convolution.py).
    Compiled on a CPU, small ones are a matrix product over shifted copies, which becomes one batched product;
    large images would take too much memory that way and keep the convolution.
    """

    pooling: "tuple[StackedMaxPool2d, ...]" = ()  # the one that follows; not as a child, which has a name

    def forward(self, x: Tensor) -> Tensor:
        stacks = x.dim() == 4 and stackable(x) and stackable(self.weight)
        if self.pooling:
            (pool,) = self.pooling
            how = self.stride, self.padding, self.dilation
            if stacks and not isinstance(self.padding, str) and pools(x, self.weight, *how):
                return stacked_pooled_convolution(x, self.weight, self.bias, self.padding, pool.relu)
            return cast(Tensor, pool(self.convolved(x, stacks)))
        return self.convolved(x, stacks)

    def convolved(self, x: Tensor, stacks: bool) -> Tensor:
        """The convolution itself."""
        if stacks and not isinstance(self.padding, str):
            return stacked_convolution(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        plain = not torch.compiler.is_compiling() or x.device.type != "cpu" or x.dim() != 4
        if plain or isinstance(self.padding, str):
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        (kh, kw), (sh, sw), (dh, dw), (ph, pw) = self.kernel_size, self.stride, self.dilation, self.padding
        height = (x.shape[2] + 2 * ph - dh * (kh - 1) - 1) // sh + 1
        width = (x.shape[3] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
        if x.shape[1] * kh * kw * height * width > SMALL_CONVOLUTION:
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, pw, pw, ph, ph))
        shifted = [
            padded[
                :, i * dh : i * dh + (height - 1) * sh + 1 : sh, j * dw : j * dw + (width - 1) * sw + 1 : sw
            ]
            for i in range(kh)
            for j in range(kw)
        ]
        columns = torch.stack(shifted, 3).reshape(x.shape[0] * height * width, -1)
        kernel = self.weight.permute(2, 3, 1, 0).reshape(-1, self.out_channels)
        out = columns @ kernel if self.bias is None else torch.addmm(self.bias, columns, kernel)
        return out.view(x.shape[0], height, width, -1).permute(0, 3, 1, 2).contiguous()


class StackedMaxPool2d(nn.MaxPool2d):
    """2×2 max pooling with the ReLU behind it, if there is one; a stack on a GPU has a program for both."""

    relu = False

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and stackable(x):
            return stacked_pooling(x, self.relu)
        return F.relu(super().forward(x)) if self.relu else super().forward(x)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key and the element's place, not of a hidden generator."""

    key: Tensor  # [3]: two words of the step, the number of this layer
    p: float
    whole_channels: bool

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        places = x[0].flatten(1)[:, 0] if self.whole_channels and x.dim() > 2 else x[0]
        inside = torch.arange(places.numel(), device=x.device).view(1, *places.shape)
        sample = torch.arange(x.shape[0], device=x.device).view(-1, *([1] * places.dim()))
        drawn = torch_words((self.key[0], self.key[1]), (inside, sample, self.key[2], 0))[0]
        keep = drawn >= round(self.p * 2**32)
        keep = keep.view(*keep.shape, *([1] * (x.dim() - keep.dim())))
        return torch.where(keep, x / (1 - self.p), torch.zeros_like(x))


SMALL_CONVOLUTION = 2**14  # values of one sample's shifted copies
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUTS = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}
# Layers of exactly these types are replaced. A layer that can draw gets a buffer `key`.
KEYED: dict[type[nn.Module], type[nn.Module]] = {
    nn.RReLU: KeyedRReLU,
    nn.MultiheadAttention: KeyedAttention,
    nn.LSTM: KeyedLSTM,
    nn.GRU: KeyedGRU,
    nn.RNN: KeyedRNN,
    nn.LSTMCell: PlainLSTMCell,
    nn.GRUCell: PlainGRUCell,
    nn.RNNCell: PlainRNNCell,
    nn.TransformerEncoder: Encoder,
    nn.TransformerDecoder: Decoder,
}


def private_copy(module: nn.Module) -> nn.Module:
    """A deep copy of the module; raises if it contains the old nn.utils.weight_norm."""
    for name, layer in module.named_modules():
        if any(isinstance(hook, WeightNorm) for hook in forward_pre_hooks(layer)):
            raise RequestError(
                f"{name or 'the module'} ({type(layer).__name__}): nn.utils.weight_norm makes a module that "
                "cannot be copied. Use nn.utils.parametrizations.weight_norm."
            )
    return copy.deepcopy(module)


def exchange_layers(module: nn.Module, frozen_statistics: bool) -> tuple[list[str], list[str]]:
    """Exchange batch norm and dropout in place; the names of the buffers for sample weights and for keys."""
    weights, keys = [], []
    later: list[str] = []  # keys of layers that are numbered after the dropout layers
    for name, layer in list(module.named_modules()):
        path = f"{name}." if name else ""
        if type(layer) in BATCH_NORMS:
            if layer.momentum is None:
                raise RequestError(
                    f"{name}: BatchNorm with momentum=None (cumulative average) is not supported; "
                    "give it a momentum such as 0.1."
                )
            layer.__class__ = MaskedBatchNorm
            layer.frozen_statistics = frozen_statistics
            layer.register_buffer("sample_weight", torch.ones(1), persistent=False)
            weights.append(path + "sample_weight")
        elif isinstance(layer, AnyBatchNorm):
            raise RequestError(
                f"{name}: {type(layer).__name__} is not supported; use BatchNorm1d/2d/3d or GroupNorm."
            )
        elif isinstance(layer, AnyInstanceNorm) and layer.track_running_stats:
            raise RequestError(f"{name}: InstanceNorm with track_running_stats=True is not supported.")
        elif type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            layer.__class__ = StackedConv2d
        elif type(layer) is nn.MaxPool2d and halves(layer):
            layer.__class__ = StackedMaxPool2d
        elif isinstance(layer, nn.Sequential):
            join_relu(layer)
        elif type(layer) in DROPOUTS:
            whole = DROPOUTS[type(layer)]
            layer.__class__ = KeyedDropout
            layer.whole_channels = whole
            layer.register_buffer("key", torch.zeros(3, dtype=torch.int64), persistent=False)
            keys.append(path + "key")
        elif isinstance(layer, AnyDropout):
            raise RequestError(f"{name}: {type(layer).__name__} is not supported; use nn.Dropout.")
        elif type(layer) in KEYED:
            layer.__class__ = KEYED[type(layer)]
            if isinstance(layer, KeyedRReLU) or getattr(layer, "dropout", None):
                layer.register_buffer("key", torch.zeros(3, dtype=torch.int64), persistent=False)
                later.append(path + "key")
        disable_fused_paths(layer)
    add_float32_hooks(module)
    every = [layer for _, layer in module.named_modules(remove_duplicate=False)]
    for layer in every:
        if isinstance(layer, nn.Sequential):
            join_pooling(layer, every)
    return weights, keys + later


def join_relu(layers: nn.Sequential) -> None:
    """Give 2×2 poolings the ReLU that follows them; layers that stand elsewhere too stay so there."""
    for number, (pool, follows) in enumerate(pairwise(list(layers))):
        if type(pool) is nn.MaxPool2d and halves(pool) and type(follows) is nn.ReLU:
            both = StackedMaxPool2d(2, ceil_mode=pool.ceil_mode)
            both.relu = True
            layers[number], layers[number + 1] = both, nn.Identity()


def join_pooling(layers: nn.Sequential, every: list[nn.Module]) -> None:
    """Give convolutions that stand nowhere else the 2×2 pooling that follows them."""
    for number, (convolution, pool) in enumerate(pairwise(list(layers))):
        once = sum(layer is convolution for layer in every) == 1
        if once and type(convolution) is StackedConv2d and type(pool) is StackedMaxPool2d:
            convolution.pooling = (pool,)
            layers[number + 1] = nn.Identity()


def halves(layer: nn.MaxPool2d) -> bool:
    """Whether it is plain 2×2 pooling."""
    sizes = {layer.kernel_size, layer.stride} <= {2, (2, 2)}
    return (
        sizes and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.return_indices
    )


def tap_features(module: nn.Module) -> str | None:
    """Make the last linear layer leave its input behind as a buffer; that buffer's name, if any."""
    # Attention reads the weights of its last layer but never calls the layer.
    never_called = NonDynamicallyQuantizableLinear
    every = module.named_modules()
    linears = [(k, v) for k, v in every if isinstance(v, nn.Linear) and not isinstance(v, never_called)]
    if not linears:
        return None
    name, layer = linears[-1]
    base = type(layer)

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        self.features = x
        return F.linear(x, self.weight, self.bias) if base is nn.Linear else base.forward(self, x)

    layer.__class__ = type(f"Tapped{base.__name__}", (base,), {"forward": forward})
    layer.register_buffer("features", torch.zeros(1), persistent=False)
    return f"{name}.features" if name else "features"
