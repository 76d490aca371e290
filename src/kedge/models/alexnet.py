"""AlexNet with batch norm (Krizhevsky et al., 2012; as in PersonalizedFL), used instead of COVID-Net.

FedTR's paper names COVID-Net, a large tailored network; the code that prepares its data uses this network.
Five convolutions, average pooling to 6×6, and two linear layers of width `hidden`, each with batch norm. For
images of 64×64 or more.
"""

from collections.abc import Sequence

from torch import nn

from kedge.core.errors import RequestError

# output channels, kernel, stride, padding, pooling?
CONVOLUTIONS = ((64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False),
                (256, 3, 1, 1, True))  # fmt: skip
GRID = 6


def alexnet_bn(shape: Sequence[int], classes: int, hidden: int = 4096) -> nn.Module:
    """AlexNet with batch norm, used instead of COVID-Net."""
    if len(shape) != 3 or min(shape[1:]) < 63:
        raise RequestError(
            f"alexnet-bn needs images [channels, 63 or more, 63 or more]; the data have {tuple(shape)}."
        )
    channels = shape[0]
    layers: list[nn.Module] = []
    for out, kernel, stride, padding, pooled in CONVOLUTIONS:
        layers += [nn.Conv2d(channels, out, kernel, stride, padding), nn.BatchNorm2d(out), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2)] if pooled else []
        channels = out
    layers += [nn.AdaptiveAvgPool2d(GRID), nn.Flatten()]
    features = channels * GRID**2
    for _ in range(2):
        layers += [nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
        features = hidden
    return nn.Sequential(*layers, nn.Linear(features, classes))
