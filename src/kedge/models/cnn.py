"""Convolutional networks of the papers; each layer with weights is a unit.

Their parameter counts are tested against the published ones (797,962 and 582,026).
"""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from kedge.core.errors import RequestError

Norm = Literal["none", "batch", "group"]


def normalization(norm: Norm, channels: int) -> list[nn.Module]:
    """The norm layer after a convolution, if any; group norm has 2 groups as in the papers."""
    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    return [nn.GroupNorm(2, channels)] if norm == "group" else []


def convolutional(
    shape: Sequence[int],
    classes: int,
    widths: Sequence[int],
    kernel: int,
    padding: int,
    hidden: Sequence[int],
    norm: Norm,
) -> nn.Module:
    """conv – [norm] – ReLU – 2×2 pooling for each width, then linear layers with ReLU, the classifier.

    ReLU stands behind the pooling: to the bit the same function and gradients, on a quarter of the values.
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
    """The FedDyn and FedBug papers' CNN: two 5×5 convolutions (64×64 images: three), two layers."""
    large = len(shape) == 3 and shape[1] >= 64
    widths, hidden = ((64, 64, 64), (256, 128)) if large else ((64, 64), (384, 192))
    return convolutional(shape, classes, widths, 5, 0, hidden, norm)


def shallow_cnn(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """The layer-expansion paper's CNN: 5×5 convolutions 32, 64, then 512."""
    return convolutional(shape, classes, (32, 64), 5, 0, (512,), norm)


def small_cnn(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """For small images: 3×3 convolutions 16, 32 with padding, then 64."""
    return convolutional(shape, classes, (16, 32), 3, 1, (64,), norm)


def lenet5(shape: Sequence[int], classes: int, norm: Norm = "none") -> nn.Module:
    """LeNet-5: 5×5 convolutions 6, 16, then 120 and 84; FedTR's network for 28×28 medical images."""
    return convolutional(shape, classes, (6, 16), 5, 0, (120, 84), norm)
