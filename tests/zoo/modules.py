"""Small networks of the usual kinds, written as users write them, without regard to kedge."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 3
WORDS = 20  # token ids run from 0 to 19
LENGTH = 6


class Residual(nn.Module):
    """Two convolutions with batch norm, and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outer)
        same = inner == outer and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)), inplace=True)
        y = self.second_norm(self.second(y))
        y += self.shortcut(x)
        return F.relu(y)


class ResNet(nn.Module):
    """A small ResNet with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 12, 2))
        self.average = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.flatten(self.average(self.blocks(self.pool(self.stem(x)))), 1))
        return logits


class SqueezeExcite(nn.Module):
    """Channels weighted by a small network of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.average = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = F.hardsigmoid(self.up(F.relu(self.down(self.average(x)))))
        return x * scale


class MobileNet(nn.Module):
    """Inverted residuals with depthwise convolutions, squeeze-excite and hardswish."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.Hardswish())
        self.block = nn.Sequential(
            nn.Conv2d(6, 12, 1, bias=False),
            nn.BatchNorm2d(12),
            nn.Hardswish(inplace=True),
            nn.Conv2d(12, 12, 5, 1, 2, groups=12, bias=False),
            nn.BatchNorm2d(12),
            nn.Hardswish(inplace=True),
            SqueezeExcite(12),
            nn.Conv2d(12, 6, 1, bias=False),
            nn.BatchNorm2d(6),
        )
        self.classifier = nn.Sequential(
            nn.Linear(6, 10), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(10, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.block(x)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class Depthwise(nn.Module):
    """Depthwise-separable convolutions without any norm: every one has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, 1, 1, groups=6),
            nn.PReLU(6),
            nn.Conv2d(6, 8, 1, groups=2),
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(F.adaptive_max_pool2d(self.body(x), 1).flatten(1))
        return logits


class Transposed(nn.Module):
    """An encoder and a decoder: transposed convolution, upsampling, circular padding, instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 2, 2)
        self.norm = nn.InstanceNorm2d(6, affine=True)
        self.up = nn.ConvTranspose2d(6, 4, 2, 2)
        self.smooth = nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular")
        self.head = nn.Linear(4 * 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.smooth(self.up(F.silu(self.norm(self.down(x))))))
        y = F.interpolate(F.avg_pool2d(y, 4), scale_factor=2, mode="bilinear")
        logits: Tensor = self.head(y.flatten(1))
        return logits


class ViT(nn.Module):
    """Patches, a class token, positions, and torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, 8))
        self.position = nn.Parameter(0.02 * torch.randn(1, 5, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position
        logits: Tensor = self.head(self.norm(self.encoder(tokens))[:, 0])
        return logits


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, layer norm over channels, two linear layers with GELU, layer scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(0.5 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.widen(y)))
        out: Tensor = x + y.permute(0, 3, 1, 2)
        return out


class ConvNeXt(nn.Module):
    """A small ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, 2)
        self.blocks = nn.Sequential(ConvNeXtBlock(6), ConvNeXtBlock(6))
        self.norm = nn.GroupNorm(1, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.stem(x))).mean((-2, -1)))
        return logits


class Text(nn.Module):
    """Token ids through an embedding and an LSTM or a GRU; the last state is classified."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.cells = kind(8, 10, batch_first=True, **options)
        self.head = nn.Linear(10 * (2 if self.cells.bidirectional else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(self.embedding(x.long()))
        logits: Tensor = self.head(states[:, -1])
        return logits


class Words(nn.Module):
    """The mean of the embeddings of a text's words, classified."""

    def __init__(self, bag: bool) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(WORDS, 8, mode="mean") if bag else nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found = self.embedding(x.long())
        logits: Tensor = self.head(found if found.dim() == 2 else found.mean(1))
        return logits


class TextCNN(nn.Module):
    """Convolutions over the words, the largest answer of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.windows = nn.ModuleList(nn.Conv1d(8, 5, width, padding="same") for width in (3, 5))
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x.long()).transpose(1, 2)
        logits: Tensor = self.head(torch.cat([F.relu(own(words)).amax(2) for own in self.windows], 1))
        return logits


class Bilinear(nn.Module):
    """A bilinear layer, which vmap computes client by client."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(LENGTH, 5), nn.Linear(LENGTH, 4)
        self.both = nn.Bilinear(5, 4, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.both(self.left(x), self.right(x))))
        return logits


def mlp() -> nn.Module:
    """A perceptron with dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES))


def volumes() -> nn.Module:
    """Convolutions over volumes: the channels taken as a third axis."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(),
        nn.AdaptiveAvgPool3d((1, 2, 2)), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def of_torchvision(name: str, **options: bool) -> Callable[[], nn.Module]:
    """One of torchvision's own networks; it is imported when it is built."""

    def build() -> nn.Module:
        import torchvision

        built: nn.Module = getattr(torchvision.models, name)(num_classes=CLASSES, **options)
        return built

    return build


class Member(NamedTuple):
    """A network of the zoo."""

    build: Callable[[], nn.Module]
    kind: str = "images"  # or words
    lr: float = 0.05
    side: int = 8  # of the images
    external: bool = False  # of torchvision
    # Has hardswish or hardsigmoid: torch's CUDA kernels take 1/6 in float32, also for float64.
    hard: bool = False


def has_torchvision() -> bool:
    """Whether torchvision is installed."""
    return importlib.util.find_spec("torchvision") is not None


ZOO: dict[str, Member] = {
    "mlp": Member(mlp),
    "resnet": Member(ResNet, lr=0.01),
    "mobilenet": Member(MobileNet, hard=True),
    "depthwise": Member(Depthwise),
    "transposed": Member(Transposed),
    "volumes": Member(volumes),
    "convnext": Member(ConvNeXt),
    "vit": Member(ViT),
    "words": Member(lambda: Words(bag=False), "words", 0.5),
    "bag": Member(lambda: Words(bag=True), "words", 0.5),
    "text-cnn": Member(TextCNN, "words", 0.2),
    "lstm": Member(lambda: Text(nn.LSTM), "words", 0.2),
    "gru": Member(lambda: Text(nn.GRU, num_layers=2, bidirectional=True), "words", 0.2),
    "bilinear": Member(Bilinear, "words"),
    # Without zero_init_residual, its gradients in bfloat16 and in float32 differ by 0.4 of their length, in
    # torch alone too, so that errors of an engine would not be visible.
    "torchvision-resnet18": Member(
        of_torchvision("resnet18", zero_init_residual=True), lr=0.0002, side=32, external=True
    ),
    "torchvision-mobilenet": Member(
        of_torchvision("mobilenet_v3_small"), lr=0.01, side=64, external=True, hard=True
    ),
}


def module_of(name: str) -> nn.Module:
    """A network of the zoo with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ZOO[name].build()
