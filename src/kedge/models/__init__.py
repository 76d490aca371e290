"""Networks by name: factories that take the shape of a sample, the number of classes, and options."""

from collections.abc import Callable

from torch import nn

from kedge.models.alexnet import alexnet_bn
from kedge.models.cnn import lenet5, shallow_cnn, small_cnn, standard_cnn
from kedge.models.inertial import pamap2_net
from kedge.models.mlp import mlp
from kedge.models.resnet import resnet18, resnet20, resnet34
from kedge.models.vgg import vgg11

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "standard-cnn": standard_cnn,
    "shallow-cnn": shallow_cnn,
    "small-cnn": small_cnn,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet20": resnet20,
    "vgg11": vgg11,
    "lenet5": lenet5,
    "pamap2-net": pamap2_net,
    "alexnet-bn": alexnet_bn,
}
