"""Residual networks (He et al., 2016) of basic blocks, with batch norm or group norm of 2 groups.

ResNet-18 and ResNet-34 have the ImageNet stem (7×7, stride 2, 3×3 max pooling), which FedBug's authors use on
32×32 images too, or the "cifar" stem (3×3, stride 1, no pooling). ResNet-20 is for small images; its
shortcuts have no parameters. Parameter names are those of torchvision, so the state_dict of a torchvision
network with batch norm loads; initial weights are torch's defaults, not torchvision's.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from kedge.core.errors import RequestError
from kedge.models.cnn import normalization

Norm = Literal["group", "batch"]
Stem = Literal["imagenet", "cifar"]
Shortcut = Callable[[int, int, int, Norm], nn.Module]  # channels before and after, stride, norm


class Subsampled(nn.Module):
    """Every `stride`-th pixel, and zeros in the `added` channels (option A)."""

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = added, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


def option_a(before: int, after: int, stride: int, norm: Norm) -> nn.Module:
    """A shortcut without parameters (option A)."""
    return Subsampled(after - before, stride)


def projection(before: int, after: int, stride: int, norm: Norm) -> nn.Module:
    """A shortcut with a 1×1 convolution and a norm (option B)."""
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), *normalization(norm, after))


class Block(nn.Module):
    """Two 3×3 convolutions with norms, added to the shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        [self.bn1] = normalization(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        [self.bn2] = normalization(norm, after)
        same = before == after and stride == 1
        self.downsample = nn.Identity() if same else shortcut(before, after, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """Stem, layers of blocks, classifier; all layers but the first halve the image and double the width."""

    def __init__(  # noqa: PLR0913  # the settings of the network
        self,
        shape: Sequence[int],
        classes: int,
        blocks: Sequence[int],
        width: int,
        norm: Norm,
        stem: Stem,
        shortcut: Shortcut,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise RequestError(
                f"a ResNet needs images [channels, height, width]; the data have shape {tuple(shape)}. "
                "Use mlp."
            )
        if width < 1 or (norm == "group" and width % 2):
            raise RequestError(
                f"width = {width}: need at least 1 channel, and an even number for group norm (2 groups)."
            )
        large = stem == "imagenet"
        kernel, stride = (7, 2) if large else (3, 1)
        self.conv1 = nn.Conv2d(shape[0], width, kernel, stride, kernel // 2, bias=False)
        [self.bn1] = normalization(norm, width)
        self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.names = [f"layer{number}" for number in range(1, len(blocks) + 1)]
        before = width
        for level, (name, count) in enumerate(zip(self.names, blocks, strict=True)):
            after, first = width * 2**level, 1 if level == 0 else 2
            layer = [Block(before, after, first, norm, shortcut)]
            layer += [Block(after, after, 1, norm, shortcut) for _ in range(count - 1)]
            self.add_module(name, nn.Sequential(*layer))
            before = after
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.pool(self.bn1(self.conv1(x))))  # same result as ReLU before pooling, on fewer values
        for name in self.names:
            x = getattr(self, name)(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet18(
    shape: Sequence[int], classes: int, norm: Norm = "group", stem: Stem = "imagenet", width: int = 64
) -> nn.Module:
    """ResNet-18: four layers of 2, 2, 2, 2 blocks."""
    return ResNet(shape, classes, (2, 2, 2, 2), width, norm, stem, projection)


def resnet34(
    shape: Sequence[int], classes: int, norm: Norm = "group", stem: Stem = "imagenet", width: int = 64
) -> nn.Module:
    """ResNet-34: four layers of 3, 4, 6, 3 blocks."""
    return ResNet(shape, classes, (3, 4, 6, 3), width, norm, stem, projection)


def resnet20(shape: Sequence[int], classes: int, norm: Norm = "batch", width: int = 16) -> nn.Module:
    """ResNet-20 for small images: three layers of 3 blocks, shortcuts without parameters."""
    return ResNet(shape, classes, (3, 3, 3), width, norm, "cifar", option_a)
