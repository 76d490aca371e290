"""FedDyn (Acar et al., 2021): its client part and its server part alone (FedDyn→FedAvg's appendix A.8).

Without the regularizer: clients train as in FedAvg, the server updates as in FedDyn, θ ← γ + u. α cancels, so
it is `feddyn.py` with α = 0: a server momentum with the memory Σ Δ_i / m.
Without h: clients train and keep u_i as in FedDyn, θ ← γ. The server updates u but does not use it.
Both have FedDyn's correction and slot, so a stage of one continues with the memory of the other.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.core.algorithm import Algorithm
from kedge.core.ranges import checked


def feddyn_no_reg() -> Algorithm:
    """FedDyn's server with FedAvg's clients."""
    return replace(fedavg("uniform"), name="feddyn-no-reg", corrections=(DynamicRegularizer(0.0),))


@checked
def feddyn_no_h(
    alpha: Annotated[float, Field(gt=0, description="for no regularizer use fedavg")] = 0.01,
) -> Algorithm:
    """FedDyn's clients with a server that only averages."""
    correction = DynamicRegularizer(alpha, correct=False)
    return replace(fedavg("uniform"), name="feddyn-no-h", corrections=(correction,))
