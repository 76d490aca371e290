"""Networks by name: factories of (shape of one sample, classes, options)."""

from collections.abc import Callable

from torch import nn

from kedge.models.cnn import shallow_cnn, small_cnn, standard_cnn
from kedge.models.mlp import mlp

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "standard-cnn": standard_cnn,
    "shallow-cnn": shallow_cnn,
    "small-cnn": small_cnn,
}
