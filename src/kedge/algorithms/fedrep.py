"""FedRep (Collins et al., 2021): in each round a client trains its own head first, then the shared base.

The head trains in the share `head_share` of the local steps, the base in the others. The server averages the
base; clients keep their heads. epochs = 2 with head_share = 0.5 is PFLlib's one epoch of each; epochs = 15
with head_share = 2/3 is the authors' 10 and 5 epochs. One optimizer trains both, as in the authors' code.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from kedge.algorithms.fedavg import Weights
from kedge.algorithms.fedper import fedper
from kedge.core.algorithm import Algorithm
from kedge.core.ranges import checked
from kedge.core.schedules import Clock, Mask, exact_fraction


@dataclass(frozen=True)
class HeadThenBody:
    """The last `count` units train in the first `share` of a client's local steps, the others in the rest.

    The number of first steps is rounded; both parts have at least one step. A single step trains the body.
    """

    share: float
    count: int = 1

    def __call__(self, clock: Clock, units: int) -> Mask:
        numerator, denominator = exact_fraction(self.share)
        rounded = (2 * numerator * clock.steps + denominator) // (2 * denominator)
        head_steps = min(max(rounded, 1), clock.steps - 1)
        return tuple((unit >= units - self.count) == (clock.step < head_steps) for unit in range(units))


@checked
def fedrep(
    head: int = 1,
    head_share: Annotated[float, Field(gt=0, lt=1, description="the share of local steps on the head")] = 0.5,
    weights: Weights = "size",
) -> Algorithm:
    """Every client trains its own head, then the base, which is averaged."""
    return replace(fedper(head, weights), name="fedrep", schedule=HeadThenBody(head_share, head))
