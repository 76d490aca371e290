"""Convolutional networks of the papers. Each layer with weights is a unit.

Tests compare the parameter counts with the published counts (797,962 and 582,026).
"""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from kedge.core.errors import RequestError

Norm = Literal["none", "batch", "group"]


def normalization(norm: Norm, channels: int) -> list[nn.Module]:
    """The norm layer after a convolution, or an empty list; group norm has 2 groups, as in the papers."""
    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    return [nn.GroupNorm(2, channels)] if norm == "group" else []


def convolutional(  # noqa: PLR0913  # the settings of the network
    shape: Sequence[int],
    classes: int,
    widths: Sequence[int],
    kernel: int,
    padding: int,
    hidden: Sequence[int],
    norm: Norm,
) -> nn.Module:
    """Convolution, norm, ReLU and 2×2 max pooling for each width; linear layers with ReLU; the classifier.

    ReLU is applied after the pooling: function and gradients are the same to the bit, on a quarter of the
    values.
    """
    if len(shape) != 3:
        raise RequestError(
            f"a CNN needs images [channels, height, width]; the data have shape {tuple(shape)}. Use mlp."
        )
    channels, height, width = shape
    layers: list[nn.Module] = []
    for out in widths:
        layers += [
            nn.Conv2d(channels, out, kernel, padding=padding),
            *normalization(norm, out),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
        channels = out
        if height < 1 or width < 1:
            raise RequestError(
                f"images of {shape[1]}×{shape[2]} are too small for "
                f"{len(widths)} layers of {kernel}×{kernel}."
            )
    features = channels * height * width
    layers.append(nn.Flatten())
    for out in hidden:
        layers += [nn.Linear(features, out), nn.ReLU()]
        features = out
    return nn.Sequential(*layers, nn.Linear(features, classes))


def standard_cnn(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """The CNN of FedDyn and FedBug: two 5×5 convolutions (three for 64×64 images), two hidden layers."""
    large = len(shape) == 3 and shape[1] >= 64
    widths, hidden = ((64, 64, 64), (256, 128)) if large else ((64, 64), (384, 192))
    return convolutional(shape, classes, widths, 5, 0, hidden, norm)


def shallow_cnn(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """The CNN of the layer-expansion paper: 5×5 convolutions of 32 and 64 channels, hidden layer of 512."""
    return convolutional(shape, classes, (32, 64), 5, 0, (512,), norm)


def small_cnn(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """A CNN for small images: padded 3×3 convolutions of 16 and 32 channels, hidden layer of 64."""
    return convolutional(shape, classes, (16, 32), 3, 1, (64,), norm)


def lenet5(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """LeNet-5: 5×5 convolutions of 6 and 16 channels, hidden layers of 120 and 84 (FedTR)."""
    return convolutional(shape, classes, (6, 16), 5, 0, (120, 84), norm)
