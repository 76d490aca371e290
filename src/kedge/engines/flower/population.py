"""Population: the clients of a federation, as its engine knows them before the first round."""

from collections.abc import Sequence
from typing import NamedTuple

from kedge.core.tree import Tree
from kedge.engines.flower.private_rules import PrivateRules
from kedge.engines.flower.roster import Roster

NORM_LIMIT = 100.0


class Population(NamedTuple):
    """The clients of a federation, and the templates of their uploads."""

    clients: int  # the number of all clients of the experiment
    roster: Roster  # the clients that have joined
    uploads: Sequence[Tree]  # for each stage: a tree with the names, shapes and dtypes of an upload
    norm_limit: float = NORM_LIMIT  # an update with a norm above this multiple of the median is left out
    private: PrivateRules | None = None  # with them, `norm_limit` has no effect
