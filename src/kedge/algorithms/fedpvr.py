"""FedPVR (Li et al., 2023): SCAFFOLD's control variates on the last units only.

On the last units c and c_i are SCAFFOLD's. The other units have none and train as in FedAvg. Means are
uniform. The authors' code corrects the classifier of ResNet-8 (last = 1) and the three linear layers of
VGG-11 (last = 3).
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.scaffold import ControlVariates
from kedge.core.algorithm import Algorithm
from kedge.core.ranges import checked


@checked
def fedpvr(
    last: Annotated[int, Field(ge=1, description="none is fedavg")] = 1, allow_momentum: bool = False
) -> Algorithm:
    """Control variates on the last units only, where clients differ most."""
    return replace(
        fedavg("uniform"), name="fedpvr", corrections=(ControlVariates(allow_momentum, last, "fedpvr"),)
    )
