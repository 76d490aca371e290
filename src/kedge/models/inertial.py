"""PAMAP2-Net (PersonalizedFL, FedTR): two convolutions over time, for windows of inertial sensors.

Convolution of 16 channels (1×9), batch norm, ReLU, pooling (1×2); the same with 32 channels; hidden layer of
64; classifier. Windows are [channels, 1, time] or, as in UCI HAR, [channels, time].
"""

from collections.abc import Sequence

from torch import nn

from kedge.core.errors import RequestError

KERNEL, WIDTHS, HIDDEN = 9, (16, 32), 64


def pamap2_net(shape: Sequence[int], classes: int) -> nn.Module:
    """Two 1×9 convolutions over time with batch norm, hidden layer of 64."""
    if not (len(shape) == 2 or (len(shape) == 3 and shape[1] == 1)):
        raise RequestError(
            f"pamap2-net needs windows [channels, time] or [channels, 1, time]; the data have {tuple(shape)}."
        )
    channels, time = shape[0], shape[-1]
    layers: list[nn.Module] = [nn.Unflatten(1, (channels, 1))] if len(shape) == 2 else []
    for width in WIDTHS:
        layers += [
            nn.Conv2d(channels, width, (1, KERNEL)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
        ]
        channels, time = width, (time - KERNEL + 1) // 2
    if time < 1:
        raise RequestError(
            f"windows of {shape[-1]} samples are too short for pamap2-net: it needs 26 or more."
        )
    layers += [nn.Flatten(), nn.Linear(channels * time, HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, classes))
