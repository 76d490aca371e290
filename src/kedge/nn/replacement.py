"""Replace layers in a private copy of a user's module, so that it is a pure function and ignores padding."""

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
    """Replace layers of `module` in place, and return the names of the buffers that this adds.

    The first list are buffers for sample weights, the second are buffers for keys: first those of dropout
    layers, then those of the other layers that draw. The place of a key in the list is its layer's number.
    """
    weights, dropout_keys = [], []
    other_keys: list[str] = []
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
            whole_channels = DROPOUTS[type(layer)]
            layer.__class__ = KeyedDropout
            layer.whole_channels = whole_channels
            layer.register_buffer("key", torch.zeros(3, dtype=torch.int64), persistent=False)
            dropout_keys.append(path + "key")
        elif type(layer) in KEYED:
            layer.__class__ = KEYED[type(layer)]
            if isinstance(layer, KeyedRReLU) or getattr(layer, "dropout", None):
                layer.register_buffer("key", torch.zeros(3, dtype=torch.int64), persistent=False)
                other_keys.append(path + "key")
        disable_fused_paths(layer)
    add_float32_hooks(module)
    all_layers = [layer for _, layer in module.named_modules(remove_duplicate=False)]
    for layer in all_layers:
        if isinstance(layer, nn.Sequential):
            fuse_pooling(layer, all_layers)
    return weights, dropout_keys + other_keys


def check_supported(name: str, layer: nn.Module) -> None:
    """Raise if the layer is a norm or dropout layer that cannot be replaced."""
    class_name = type(layer).__name__
    if type(layer) in BATCH_NORMS:
        if layer.momentum is None:
            raise RequestError(
                f"{name}: BatchNorm with momentum=None (cumulative average) is not supported; "
                "give it a momentum such as 0.1."
            )
    elif isinstance(layer, AnyBatchNorm):
        raise RequestError(f"{name}: {class_name} is not supported; use BatchNorm1d/2d/3d or GroupNorm.")
    elif isinstance(layer, AnyInstanceNorm) and layer.track_running_stats:
        raise RequestError(f"{name}: InstanceNorm with track_running_stats=True is not supported.")
    elif isinstance(layer, AnyDropout) and type(layer) not in DROPOUTS:
        raise RequestError(f"{name}: {class_name} is not supported; use nn.Dropout.")


def fuse_relu(layers: nn.Sequential) -> None:
    """Fuse 2×2 max pooling with a ReLU after it; other uses of the same two layers do not change."""
    for number, (pool, activation) in enumerate(pairwise(list(layers))):
        if type(pool) is nn.MaxPool2d and is_2x2_pooling(pool) and type(activation) is nn.ReLU:
            fused = StackedMaxPool2d(2, ceil_mode=pool.ceil_mode)
            fused.relu = True
            layers[number], layers[number + 1] = fused, nn.Identity()


def fuse_pooling(layers: nn.Sequential, all_layers: list[nn.Module]) -> None:
    """Fuse a convolution with the 2×2 max pooling after it, unless the module uses the convolution twice."""
    for number, (convolution, pool) in enumerate(pairwise(list(layers))):
        used_once = sum(layer is convolution for layer in all_layers) == 1
        if used_once and type(convolution) is StackedConv2d and type(pool) is StackedMaxPool2d:
            convolution.pooling = (pool,)
            layers[number + 1] = nn.Identity()


def is_2x2_pooling(layer: nn.MaxPool2d) -> bool:
    """Whether `layer` is 2×2 max pooling with stride 2, without padding, dilation or indices."""
    sizes = {layer.kernel_size, layer.stride} <= {2, (2, 2)}
    return (
        sizes and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.return_indices
    )


def store_features(module: nn.Module) -> str | None:
    """Make the last linear layer store its input in a new buffer; return the buffer's name, or None."""
    # Attention reads the weights of its last layer but never calls the layer.
    never_called = NonDynamicallyQuantizableLinear
    layers = module.named_modules()
    linears = [(k, v) for k, v in layers if isinstance(v, nn.Linear) and not isinstance(v, never_called)]
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
