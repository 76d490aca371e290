"""FedRep (Collins et al., 2021): a round trains the client's own head first, then the shared base.

In the first head_share of the local steps the last units train and the base rests, in the others the
reverse; the base is averaged, the head kept. PFLlib's one epoch of each is epochs = 2 and head_share =
0.5, the authors' 10 + 5 epochs are epochs = 15 and head_share = 2/3. One optimizer serves both phases, as
in the authors' code.
"""

from dataclasses import replace

from kedge.algorithms.fedavg import Weights
from kedge.algorithms.fedper import fedper
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import HeadThenBody


def fedrep(head: int = 1, head_share: float = 0.5, weights: Weights = "size") -> Algorithm:
    """Every client trains its own head, then the base, which is averaged."""
    return replace(fedper(head, weights), name="fedrep", schedule=HeadThenBody(head_share, head))
