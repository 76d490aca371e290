"""Networks by name: factories of (shape of one sample, classes, options)."""

from collections.abc import Callable

from torch import nn

from kedge.models.cnn import shallow_cnn, small_cnn, standard_cnn
from kedge.models.mlp import mlp
from kedge.models.resnet import resnet18, resnet20, resnet34

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "standard-cnn": standard_cnn,
    "shallow-cnn": shallow_cnn,
    "small-cnn": small_cnn,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet20": resnet20,
}
