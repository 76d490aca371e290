"""Training behind a frozen backbone (requires_grad=False) equals training on the backbone's outputs."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from kedge.audit.finding import Finding, compare_trees, worst_finding
from kedge.audit.problems import CLASSES, IMAGE, SOME_CLIENTS, federation
from kedge.audit.properties.engines import TOLERANCE, state_after
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.frozen import place_frozen
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.nn.from_module import from_module, seeded

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)


class Layers(nn.Module):
    """Three linear layers, on six features or on the six outputs of a backbone."""

    def __init__(self, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone or nn.Identity()
        self.a, self.b, self.c = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(self.backbone(x))))))
        return logits


def modules() -> tuple[Layers, Layers]:
    """The layers without a backbone, and the same layers with a frozen backbone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = Layers().double()
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh()).requires_grad_(False)
        network = Layers(backbone).double()
        network.load_state_dict({**network.state_dict(), **layers.state_dict()})
        return layers, network


def model_of(algorithm: Algorithm, module: nn.Module) -> Model:
    """The model of `module`, adapted to `algorithm`, with frozen parameters in float64."""
    built = seeded(lambda: algorithm.rebuild(module), 0)
    return place_frozen(algorithm.adapt(from_module(built)), torch.float64)


def with_and_without_backbone(
    algorithm: Algorithm,
) -> tuple[tuple[Model, Federation], tuple[Model, Federation]]:
    """The layers with the backbone's outputs as data, and the whole network with the images as data."""
    layers, network = modules()
    images = federation(shape=IMAGE)
    with torch.no_grad():
        outputs = network.backbone(images.prepare(images.pool.x))
    features = replace(images, pool=Dataset(outputs, images.pool.y))
    return (model_of(algorithm, layers), features), (model_of(algorithm, network), images)


def backbone_is_data(algorithm: Algorithm) -> Finding:
    """Both runs end in the same state: no server, upload or memory contains a frozen parameter."""
    findings = []
    for engine in ENGINES.values():
        on_features, on_images = (
            state_after(algorithm, LOCAL, engine(model, data), model, data, SOME_CLIENTS)
            for model, data in with_and_without_backbone(algorithm)
        )
        findings.append(compare_trees(on_features, on_images, on_features["server"]["shared"], TOLERANCE))
    return worst_finding(*findings)
