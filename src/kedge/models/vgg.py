"""VGG-11 for 32×32 images (Simonyan and Zisserman, 2015), the CIFAR-10 network of FedDyn→FedAvg.

3×3 convolutions 64 – M – 128 – M – 256 – 256 – M – 512 – 512 – M – 512 – 512 – M (M: 2×2 max pooling), each
with an optional norm and ReLU; then one linear layer, or three of width 512 as in the codes of FedPVR and
FedNTD. The paper states neither head nor norm.
"""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from kedge.core.errors import RequestError
from kedge.models.cnn import Norm, normalization

LAYERS = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


def vgg11(
    shape: Sequence[int], classes: int, norm: Norm = "none", head: Literal["single", "three"] = "single"
) -> nn.Module:
    """VGG-11 with one linear layer or three after the convolutions."""
    if len(shape) != 3 or min(shape[1:]) < 32:
        raise RequestError(
            f"vgg11 halves images five times and needs [channels, 32 or more, 32 or more]; the data have "
            f"{tuple(shape)}."
        )
    channels = shape[0]
    layers: list[nn.Module] = []
    for entry in LAYERS:
        if isinstance(entry, int):
            layers += [nn.Conv2d(channels, entry, 3, padding=1), *normalization(norm, entry), nn.ReLU()]
            channels = entry
        else:
            layers.append(nn.MaxPool2d(2))
    features = channels * (shape[1] // 32) * (shape[2] // 32)
    layers.append(nn.Flatten())
    if head == "three":
        layers += [nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        features = 512
    return nn.Sequential(*layers, nn.Linear(features, classes))
