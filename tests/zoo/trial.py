"""One cell of the zoo's table: a network trained on an engine in a precision, compared with a reference.

The comparison is of the update, the trained minus the initial weights, which is far off if weights did not
move or a client was left out. The reference is the sequential engine in fp64 on the CPU.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from tests.zoo.modules import CLASSES, LENGTH, WORDS, ZOO, module_of
from tests.zoo.rounding import DRAWS, rounding_module
from torch import Tensor

import kedge
from kedge.core.errors import RequestError

ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "stacked": {"engine": "stacked", "compile": "off"},
    "compiled": {"engine": "stacked", "compile": "on"},
    "captured": {"engine": "captured"},
}
EXPECTED_ENGINE = {
    "sequential": ("sequential", False),
    "stacked": ("stacked", False),
    "compiled": ("stacked", True),
    "captured": ("captured", True),
}
PRECISIONS = ("fp64", "fp32", "tf32", "bf16")
# Relative errors of the update and of the loss. Without one client, or with 1.5 times the rate, they exceed
# 0.2.
TOLERANCES = {"fp64": 1e-10, "fp32": 5e-3, "tf32": 0.05, "bf16": 0.15}
LARGEST_TOLERANCE = 0.15  # also for networks that amplify rounding more
HARDSWISH_TOLERANCE = 1e-6  # in fp64 on a GPU, where torch computes hardswish with a constant in float32
METHODS = {"fedavg": "fedavg", "fedbug+feddyn": "fedbug(ratio=0.4)+feddyn(alpha=0.1)"}
ROUNDS, CLIENTS, BATCH = 2, 3, 8
SIZES = (16, 12, 8)  # ragged: one has a short batch, one has fewer steps
Weights = dict[str, Tensor]


class Run(NamedTuple):
    """The result of a training run."""

    weights: Weights  # trained minus initial weights, in float64
    statistics: Weights  # the same difference of batch norm's statistics
    loss: float  # on the common test set
    engine: tuple[str, bool]  # its name, and whether it compiled


class Cell(NamedTuple):
    """The outcome of one cell, with its relative error or the reason."""

    state: str  # right, wrong, refused, failed
    error: float
    reason: str = ""

    def __str__(self) -> str:
        return f"right {self.error:.0e}" if self.state == "right" else f"{self.state}: {self.reason}"


def dataset(name: str, samples: int, seed: int) -> kedge.Dataset:
    """Synthetic samples that can be learned: each class has its own mean image, or its own words."""
    member, draw = ZOO[name], np.random.default_rng(seed)
    y = draw.permutation(np.arange(samples) % CLASSES)
    if member.kind == "words":
        own = draw.integers(1, WORDS // CLASSES, (samples, LENGTH)) + (WORDS // CLASSES) * y[:, None]
        return kedge.Dataset(own.astype(np.int64), y)
    shape = (3, member.side, member.side)
    centers = np.random.default_rng(99).standard_normal((CLASSES, *shape))
    return kedge.Dataset((centers[y] + 0.3 * draw.standard_normal((samples, *shape))).astype(np.float32), y)


def train(
    name: str, method: str, precision: Any, device: Any, draw: int | None = None, **settings: Any
) -> Run:
    """Train a network of the zoo by kedge.train.

    With a `draw`, the network trains in fp64 with operands rounded as in `precision` (rounding.py).
    """
    member, module = ZOO[name], module_of(name)
    if draw is not None:
        module, precision = rounding_module(module, precision, draw), "fp64"
    clients = [dataset(name, size, seed) for seed, size in enumerate(SIZES)]
    result = kedge.train(
        module, clients, test=dataset(name, 12, 50), method=METHODS[method], rounds=ROUNDS,
        batch=BATCH, optimizer=kedge.SGD(lr=member.lr), seed=3, precision=precision, device=device,
        progress=False, **settings,
    )  # fmt: skip
    before = {k: v.double() for k, v in module.state_dict().items()}
    update = {k: v.double() - before[k] for k, v in result.model.items() if v.is_floating_point()}
    own = {k for k, _ in module.named_parameters()}
    return Run(
        {k: v for k, v in update.items() if k in own},
        {k: v for k, v in update.items() if k not in own},
        float(result.history[-1]["distributed.global.loss"]),
        (result.engine["name"], result.engine["compiled"]),
    )


@cache
def reference(name: str, method: str) -> Run:
    """The reference for all engines and precisions."""
    return train(name, method, "fp64", "cpu", engine="sequential")


@cache
def effect_of_rounding(name: str, method: str, precision: str) -> float:
    """The largest error of the network's update by rounding alone, in ten draws."""
    right = reference(name, method)
    runs = (train(name, method, precision, "cpu", draw, engine="sequential") for draw in range(DRAWS))
    return max(error_of(run, right) for run in runs)


def error_of(found: Run, right: Run) -> float:
    """The largest relative error of weights, statistics and loss."""
    return max(
        distance(found.weights, right.weights),
        distance(found.statistics, right.statistics),
        abs(found.loss - right.loss) / right.loss,
    )


def run_cell(name: str, engine: str, precision: str, method: str = "fedavg", device: str = "cpu") -> Cell:
    """Train a network and compare it with the reference."""
    try:
        right = reference(name, method)
        found = train(name, method, precision, device, **ENGINES[engine])
    except RequestError as error:
        return Cell("refused", float("nan"), str(error))
    if found.engine != EXPECTED_ENGINE[engine]:
        return Cell("refused", float("nan"), f"{found.engine[0]} ran instead")
    away = error_of(found, right)
    allowed = TOLERANCES[precision]
    if ZOO[name].hard and (precision, device) == ("fp64", "cuda"):
        allowed = HARDSWISH_TOLERANCE
    if allowed <= away < LARGEST_TOLERANCE and precision in ("tf32", "bf16"):
        allowed = max(allowed, min(LARGEST_TOLERANCE, effect_of_rounding(name, method, precision)))
    if away < allowed:
        return Cell("right", away)
    return Cell("wrong", away, f"{away:.1e} from the reference, allowed {allowed:.0e}")


def distance(found: Weights, right: Weights) -> float:
    """The norm of the difference, relative to the norm of `right`; infinite if a number is not finite."""
    assert set(found) == set(right)
    if not right:
        return 0.0
    away = sum(float(((found[k] - right[k]) ** 2).sum()) for k in right) ** 0.5
    length = sum(float((v**2).sum()) for v in right.values()) ** 0.5
    return away / length if np.isfinite(away) else float("inf")


def run_safely(work: Callable[[], Cell]) -> Cell:
    """The cell that `work` returns; a failed cell if it raises an exception."""
    try:
        return work()
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        return Cell("failed", float("nan"), f"{type(error).__name__}: {first[0][:300]}")
