"""What the rows of a round begin with, and what of it is known before the round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from kedge.core.client import Carry
from kedge.core.tree import Leaves, Tree
from kedge.data.batches import Ints, Plan
from kedge.engines.engine import Order


@dataclass(frozen=True, eq=False)
class Begun:
    """Rows before their first step. Rows beyond the real clients are padding, and dead."""

    members: Sequence[Ints]  # the samples of each row's client
    plan: Plan
    carry: Carry
    facts: Leaves
    shared: Leaves  # what the server sent, and its learning rate: the same for all rows, or
    cast: Tree
    lr: Tensor
    apart: bool = False  # one row each


class Known(NamedTuple):
    """What is known of rows before a round begins: it does not depend on the round before."""

    plan: Plan
    facts: Leaves
    lr: Tensor


class Coming(NamedTuple):
    """Rows of a round to come: what is known of its order, the client of each, and how many are real."""

    order: Order
    rows: list[int]
    real: int
