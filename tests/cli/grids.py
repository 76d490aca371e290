"""A small grid for tests of sweeps."""

from pathlib import Path

FILE = """
rounds = 3
data = "digits"
model = "mlp"
partition = { name = "dirichlet", clients = 6, alpha = 0.1 }
participation = { per_round = 3 }
training = { batch = 20, clip = 10.0 }
optimizer = { name = "sgd", lr = 0.1 }
checkpoint = { every = 1 }
engine = { name = "stacked", compile = "off", threads = 1, precision = "fp64" }

[grid]
"""
GRID = """
method = ["fedavg", "fedbug + feddyn(alpha=0.1)"]
partition.alpha = [0.1, 1.0]
"""
CELLS = [
    f"method={method},partition.alpha={alpha}"
    for method in ("fedavg", "fedbug+feddyn-alpha-0.1")
    for alpha in ("0.1", "1.0")
]


def written(tmp_path: Path, grid: str) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(FILE + grid)
    return path
