"""A multi-layer perceptron. Each linear layer is a unit."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Hidden layers with ReLU, and the classifier."""
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
