"""One cell of the zoo's table: a network trained on an engine in a precision, held against the reference.

What is compared is the update, trained minus initial weights: weights that never moved, or a client that was
left out, are far from it. The reference is the sequential engine in fp64 on the CPU.
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
RAN = {
    "sequential": ("sequential", False),
    "stacked": ("stacked", False),
    "compiled": ("stacked", True),
    "captured": ("captured", True),
}
PRECISIONS = ("fp64", "fp32", "tf32", "bf16")
# Of the update's length and of the loss. A client left out, or a rate half as large again, is more than 0.2.
TOLERANCES = {"fp64": 1e-10, "fp32": 5e-3, "tf32": 0.05, "bf16": 0.15}
MOST = 0.15  # allowed to any network, however much it amplifies rounding
HARD = 1e-6  # in fp64 on a GPU, where torch computes hardswish with a constant in float32
METHODS = {"fedavg": "fedavg", "fedbug+feddyn": "fedbug(ratio=0.4)+feddyn(alpha=0.1)"}
ROUNDS, CLIENTS, BATCH = 2, 3, 8
SIZES = (16, 12, 8)  # ragged: one has a short batch, one has fewer steps
Weights = dict[str, Tensor]


class Run(NamedTuple):
    """What a training run ends in."""

    weights: Weights  # trained minus initial weights, in float64
    statistics: Weights  # batch norm's, likewise
    loss: float  # on the common test set
    engine: tuple[str, bool]  # which it was, and whether it compiled


class Cell(NamedTuple):
    """The outcome of one cell: right or not, or refused with a reason; `error` is relative."""

    state: str  # right, wrong, refused, failed
    error: float
    reason: str = ""

    def __str__(self) -> str:
        return f"right {self.error:.0e}" if self.state == "right" else f"{self.state}: {self.reason}"


def dataset(name: str, samples: int, seed: int) -> kedge.Dataset:
    """Made samples that can be learned: each class has a mean image, or words of its own."""
    member, draw = ZOO[name], np.random.default_rng(seed)
    y = draw.permutation(np.arange(samples) % CLASSES)
    if member.kind == "words":
        own = draw.integers(1, WORDS // CLASSES, (samples, LENGTH)) + (WORDS // CLASSES) * y[:, None]
        return kedge.Dataset(own.astype(np.int64), y)
    shape = (3, member.side, member.side)
    centers = np.random.default_rng(99).standard_normal((CLASSES, *shape))
    return kedge.Dataset((centers[y] + 0.3 * draw.standard_normal((samples, *shape))).astype(np.float32), y)


def trained(
    name: str, method: str, precision: Any, device: Any, draw: int | None = None, **settings: Any
) -> Run:
    """A network of the zoo trained by kedge.train.

    With a `draw`, it trains in fp64 with operands rounded as in `precision` (rounding.py).
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
    """The answer that all engines and precisions are held against."""
    return trained(name, method, "fp64", "cpu", engine="sequential")


@cache
def effect_of_rounding(name: str, method: str, precision: str) -> float:
    """The largest error of the network's update that rounding alone gave, in ten draws."""
    right = reference(name, method)
    runs = (trained(name, method, precision, "cpu", draw, engine="sequential") for draw in range(DRAWS))
    return max(error_of(run, right) for run in runs)


def error_of(found: Run, right: Run) -> float:
    """The largest relative error of weights, statistics and loss."""
    return max(
        distance(found.weights, right.weights),
        distance(found.statistics, right.statistics),
        abs(found.loss - right.loss) / right.loss,
    )


def cell(name: str, engine: str, precision: str, method: str = "fedavg", device: str = "cpu") -> Cell:
    """Train, and compare."""
    try:
        right = reference(name, method)
        found = trained(name, method, precision, device, **ENGINES[engine])
    except RequestError as error:
        return Cell("refused", float("nan"), str(error))
    if found.engine != RAN[engine]:
        return Cell("refused", float("nan"), f"{found.engine[0]} ran instead")
    away = error_of(found, right)
    allowed = TOLERANCES[precision]
    if ZOO[name].hard and (precision, device) == ("fp64", "cuda"):
        allowed = HARD
    if allowed <= away < MOST and precision in ("tf32", "bf16"):
        allowed = max(allowed, min(MOST, effect_of_rounding(name, method, precision)))
    if away < allowed:
        return Cell("right", away)
    return Cell("wrong", away, f"{away:.1e} from the reference, allowed {allowed:.0e}")


def distance(found: Weights, right: Weights) -> float:
    """The length of the difference by the length of the right one; infinite where a number is not finite."""
    assert set(found) == set(right)
    if not right:
        return 0.0
    away = sum(float(((found[k] - right[k]) ** 2).sum()) for k in right) ** 0.5
    length = sum(float((v**2).sum()) for v in right.values()) ** 0.5
    return away / length if np.isfinite(away) else float("inf")


def tried(work: Callable[[], Cell]) -> Cell:
    """The cell, or how it failed."""
    try:
        return work()
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        return Cell("failed", float("nan"), f"{type(error).__name__}: {first[0][:300]}")
