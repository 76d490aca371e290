"""Model: a pure function of parameters and buffers.

Parameters and buffers go in; outputs and new buffers come out. A model keeps no state of its own.
`kedge.nn.from_module` makes one from any `nn.Module`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from kedge.core.tree import Leaves

Statistics = Literal["shared", "local", "frozen"]


class Output(NamedTuple):
    """What every model returns."""

    features: Tensor  # the input of the classifier, [batch, d]
    logits: Tensor  # [batch, classes]
    extra: dict[str, Tensor] = {}  # noqa: RUF012 (read-only; functorch takes plain dicts only)


class Batch(NamedTuple):
    """Samples of one client at one step; weight 0 marks padding."""

    x: Tensor
    y: Tensor
    weight: Tensor  # [batch]
    key: Tensor  # two 32-bit words in int64: chance inside the model (dropout) is a function of it


@dataclass(frozen=True)
class Model:
    """A pure model. Units are what schedules freeze: leaf names, input side first, head last."""

    init: Callable[[int], tuple[Leaves, Leaves]]  # seed -> parameters, buffers
    apply: Callable[[Leaves, Leaves, Batch, bool], tuple[Output, Leaves]]  # …, train? -> output, new buffers
    units: tuple[tuple[str, ...], ...]
    extra: tuple[str, ...] = ()  # leaves of added heads: in no unit, always train
    statistics: Statistics = "shared"  # batch norm's: averaged, kept by each client, or never moved
    random: bool = False  # whether apply draws chance (dropout)
    half: bool = False  # whether `apply` runs under autocast in bfloat16
    mixes_samples: bool = False  # whether a sample's output depends on the padding of its batch
    unrolled: int = 0  # time steps of recurrent layers, all of which a compiled program contains
    classifier: tuple[str, ...] = ()  # the last linear layer's weight and bias: what takes the features in
    # Integer buffers and frozen parameters, with the module's values: in the state_dict, never change.
    constants: tuple[tuple[str, Tensor], ...] = ()
    frozen: Leaves = field(default_factory=dict)  # the frozen parameters as `apply` reads them (frozen.py)
    parameters: tuple[str, ...] = ()  # every parameter, trainable or frozen, in the network's order
    tied: tuple[tuple[str, str], ...] = ()  # (further name, first name) of tensors with several names
