"""The number of clients that a stack has memory for."""

import torch

from kedge.core.model import Model
from kedge.data.federation import Federation

LIVE_BYTES = 2 << 30  # memory for the rows of a stack on a CPU
COPIES = 6  # memory of a row while it trains, in multiples of its model's size


def rows_at_once(model: Model, federation: Federation) -> int:
    """The number of clients whose models, gradients and activations fit into memory side by side."""
    model_bytes = parameter_count(model) * federation.dtype.itemsize
    return max(1, live_bytes(federation.pool.x.device) // (COPIES * model_bytes))


def parameter_count(model: Model) -> int:
    """The number of elements of all parameters of a model.

    Frozen parameters are stored once for all clients, but they count: activations grow with them, too.
    """
    return sum(v.numel() for v in (*model.init(0)[0].values(), *model.frozen.values()))


def live_bytes(device: torch.device) -> int:
    """Bytes that the rows of a stack may take: weights, gradients and activations."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else LIVE_BYTES
