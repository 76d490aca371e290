"""Your own nn.Module and arrays: nothing to subclass, nothing to register."""

import numpy as np
from torch import nn

import kedge

# Three hospitals that see different mixtures of two diseases.
draw = np.random.default_rng(0)
centers = np.array([[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0]])


def patients(count: int, share_of_second: float) -> kedge.Dataset:
    """Measurements and diagnoses of `count` patients."""
    y = (draw.random(count) < share_of_second).astype(np.int64)
    return kedge.Dataset(centers[y] + 0.4 * draw.standard_normal((count, 4)), y)


hospitals = [patients(120, 0.1), patients(60, 0.9), patients(200, 0.5)]
module = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
result = kedge.train(
    module,
    hospitals,
    test=patients(500, 0.5),
    method=kedge.fedbug(kedge.feddyn(alpha=0.1), ratio=0.4),
    rounds=20,
    epochs=3,
    batch=20,
    optimizer=kedge.SGD(lr=0.05, weight_decay=1e-3),
)
module.load_state_dict(result.model)
print(f"{result.method}: {100 * result.accuracy:.1f} % after {len(result.history)} rounds")
