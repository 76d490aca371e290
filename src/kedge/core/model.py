"""Model: a network as a pure function of parameters and buffers, without state of its own.

`apply` receives parameters and buffers, and returns the output and new buffers. `kedge.nn.from_module` makes
a Model from any `nn.Module`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from kedge.core.tree import Leaves

Statistics = Literal["shared", "local", "frozen"]


class Output(NamedTuple):
    """The result of a model's forward pass."""

    features: Tensor  # the input of the classifier, [batch, d]
    logits: Tensor  # [batch, classes]
    extra: dict[str, Tensor] = {}  # noqa: RUF012 (read-only; functorch takes plain dicts only)


class Batch(NamedTuple):
    """The samples of one client in one step; weight 0 marks padding."""

    x: Tensor
    y: Tensor
    weight: Tensor  # [batch]
    key: Tensor  # two 32-bit words in int64: random numbers in the model (dropout) are a function of it


@dataclass(frozen=True)
class Model:
    """A network as pure functions; `units` are the groups of leaves that schedules freeze, head last."""

    init: Callable[[int], tuple[Leaves, Leaves]]  # seed -> parameters, buffers
    # (parameters, buffers, batch, train) -> output, new buffers
    apply: Callable[[Leaves, Leaves, Batch, bool], tuple[Output, Leaves]]
    units: tuple[tuple[str, ...], ...]
    extra: tuple[str, ...] = ()  # leaves of added heads: in no unit, always train
    statistics: Statistics = "shared"  # of batch norm: averaged, kept by each client, or never updated
    random: bool = False  # whether `apply` draws random numbers (dropout)
    half: bool = False  # whether `apply` runs under autocast in bfloat16
    mixes_samples: bool = False  # whether padding of a batch changes the outputs of the other samples
    unrolled: int = 0  # time steps of recurrent layers that a compiled program contains
    classifier: tuple[str, ...] = ()  # weight and bias of the last linear layer, whose input is `features`
    # Integer buffers and frozen parameters, with the module's values; they never change.
    constants: tuple[tuple[str, Tensor], ...] = ()
    frozen: Leaves = field(default_factory=dict)  # the frozen parameters as `apply` reads them (frozen.py)
    parameters: tuple[str, ...] = ()  # every parameter, trainable or frozen, in the network's order
    tied: tuple[tuple[str, str], ...] = ()  # (further name, first name) of tensors with several names
