"""FedDyn (Acar et al., 2021): its two halves, each without the other, as in FedDyn→FedAvg's appendix A.8.

Without the regulariser: clients train as in FedAvg, the server goes on as in FedDyn, θ ← γ + u. α cancels: it
is FedDyn with α = 0 in the form of `feddyn.py`, a server momentum whose memory is Σ Δ_i / m.
Without h: clients train and remember as in FedDyn, θ ← γ; u is kept, and used by no one.
Both share FedDyn's slot and kind, so that a stage of one goes on with the memory of another.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.core.algorithm import Algorithm
from kedge.core.ranges import checked


def feddyn_no_reg() -> Algorithm:
    """FedDyn's server over FedAvg's clients."""
    return replace(fedavg("uniform"), name="feddyn-no-reg", corrections=(DynamicRegularizer(0.0),))


@checked
def feddyn_no_h(
    alpha: Annotated[float, Field(gt=0, description="for no regularizer use fedavg")] = 0.01,
) -> Algorithm:
    """FedDyn's clients under a server that only averages."""
    correction = DynamicRegularizer(alpha, correct=False)
    return replace(fedavg("uniform"), name="feddyn-no-h", corrections=(correction,))
