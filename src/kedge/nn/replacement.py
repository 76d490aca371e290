"""The private copy of a user's module whose layers are replaced, so that it is pure and ignores padding."""

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.weight_norm import WeightNorm

from kedge.core.errors import RequestError
from kedge.nn.attention import Decoder, Encoder, KeyedAttention, disable_fused_paths
from kedge.nn.keyed import KeyedRReLU
from kedge.nn.layers import KeyedDropout, MaskedBatchNorm, StackedConv2d, StackedMaxPool2d
from kedge.nn.normalization import add_float32_hooks
from kedge.nn.recurrent import KeyedGRU, KeyedLSTM, KeyedRNN, PlainGRUCell, PlainLSTMCell, PlainRNNCell
from kedge.torch_private import AnyBatchNorm, AnyDropout, AnyInstanceNorm, forward_pre_hooks

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
    """A deep copy of the module; raises RequestError if the module uses the old nn.utils.weight_norm."""
    for name, layer in module.named_modules():
        if any(isinstance(hook, WeightNorm) for hook in forward_pre_hooks(layer)):
            raise RequestError(
                f"{name or 'the module'} ({type(layer).__name__}): nn.utils.weight_norm makes a module that "
                "cannot be copied. Use nn.utils.parametrizations.weight_norm."
            )
    return copy.deepcopy(module)


def replace_layers(  # noqa: C901  # one branch for each kind of layer
    module: nn.Module, frozen_statistics: bool
) -> tuple[list[str], list[str]]:
    """Replace layers of `module` in place; the names of the new buffers for sample weights, and for keys."""
    weights, keys = [], []
    later: list[str] = []  # keys of the layers that get their numbers after the dropout layers
    for name, layer in list(module.named_modules()):
        path = f"{name}." if name else ""
        check_supported(name, layer)
        if type(layer) in BATCH_NORMS:
            layer.__class__ = MaskedBatchNorm
            layer.frozen_statistics = frozen_statistics
            layer.register_buffer("sample_weight", torch.ones(1), persistent=False)
            weights.append(path + "sample_weight")
        elif type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            layer.__class__ = StackedConv2d
        elif type(layer) is nn.MaxPool2d and is_2x2_pooling(layer):
            layer.__class__ = StackedMaxPool2d
        elif isinstance(layer, nn.Sequential):
            fuse_relu(layer)
        elif type(layer) in DROPOUTS:
            whole = DROPOUTS[type(layer)]
            layer.__class__ = KeyedDropout
            layer.whole_channels = whole
            layer.register_buffer("key", torch.zeros(3, dtype=torch.int64), persistent=False)
            keys.append(path + "key")
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
            fuse_pooling(layer, every)
    return weights, keys + later


def check_supported(name: str, layer: nn.Module) -> None:
    """Raise if the layer is a norm or dropout layer that cannot be replaced."""
    kind = type(layer).__name__
    if type(layer) in BATCH_NORMS:
        if layer.momentum is None:
            raise RequestError(
                f"{name}: BatchNorm with momentum=None (cumulative average) is not supported; "
                "give it a momentum such as 0.1."
            )
    elif isinstance(layer, AnyBatchNorm):
        raise RequestError(f"{name}: {kind} is not supported; use BatchNorm1d/2d/3d or GroupNorm.")
    elif isinstance(layer, AnyInstanceNorm) and layer.track_running_stats:
        raise RequestError(f"{name}: InstanceNorm with track_running_stats=True is not supported.")
    elif isinstance(layer, AnyDropout) and type(layer) not in DROPOUTS:
        raise RequestError(f"{name}: {kind} is not supported; use nn.Dropout.")


def fuse_relu(layers: nn.Sequential) -> None:
    """Fuse 2×2 max pooling with a ReLU after it; other uses of the same two layers do not change."""
    for number, (pool, follows) in enumerate(pairwise(list(layers))):
        if type(pool) is nn.MaxPool2d and is_2x2_pooling(pool) and type(follows) is nn.ReLU:
            fused = StackedMaxPool2d(2, ceil_mode=pool.ceil_mode)
            fused.relu = True
            layers[number], layers[number + 1] = fused, nn.Identity()


def fuse_pooling(layers: nn.Sequential, every: list[nn.Module]) -> None:
    """Fuse a convolution with the 2×2 max pooling after it, unless the module uses the convolution twice."""
    for number, (convolution, pool) in enumerate(pairwise(list(layers))):
        once = sum(layer is convolution for layer in every) == 1
        if once and type(convolution) is StackedConv2d and type(pool) is StackedMaxPool2d:
            convolution.pooling = (pool,)
            layers[number + 1] = nn.Identity()


def is_2x2_pooling(layer: nn.MaxPool2d) -> bool:
    """Whether `layer` is 2×2 max pooling with stride 2, without padding, dilation or indices."""
    sizes = {layer.kernel_size, layer.stride} <= {2, (2, 2)}
    return (
        sizes and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.return_indices
    )


def store_features(module: nn.Module) -> str | None:
    """Let the last linear layer store its input in a buffer; the name of the buffer, or None."""
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

    layer.__class__ = type(f"{base.__name__}WithFeatures", (base,), {"forward": forward})
    layer.register_buffer("features", torch.zeros(1), persistent=False)
    return f"{name}.features" if name else "features"
