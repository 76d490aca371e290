"""Choose the number of CUDA streams for the rows of a round, by a trial whose result is stored.

One stack is fastest if its kernels fill the GPU; several, each on its own stream, if its kernels are many and
small (lanes.py). A trial compiles programs, so it runs only before long work. Its result is stored in the
cache folder by GPU, network, batch, rows and precision.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.data.download.cache import cache_folder
from kedge.data.federation import Federation

WORTHWHILE = 10  # the work must take this many times as long as the trial
MOST_STREAMS = 16  # one stream for each row is a candidate up to this number of rows


@dataclass(frozen=True)
class StreamTrial:
    """A trial of several numbers of streams, not yet run."""

    seconds: Callable[[int], float]  # measures the same work on a number of streams
    remaining: Callable[[], float]  # estimates the seconds of training that remain
    cost: float  # seconds to compile and measure one candidate


def best_streams(key: str, rows: int, trial: StreamTrial, say: Callable[[str], None]) -> int:
    """The number of streams for `rows` rows: stored under `key`, or measured if that is worthwhile, or 1."""
    file = cache_folder() / "streams.json"
    measured = read_cache(file, say)
    if key in measured:
        return measured[key]
    counts = candidates(rows)
    cost = trial.cost * len(counts)
    if trial.remaining() < WORTHWHILE * cost:
        return 1
    say(f"trying {', '.join(map(str, counts))} streams, about {cost:.0f} s")
    seconds = {count: trial.seconds(count) for count in counts}
    fastest = min(seconds, key=seconds.__getitem__)
    write_cache(file, {**read_cache(file, say), key: fastest})
    return fastest


def candidates(rows: int) -> list[int]:
    """The numbers of streams to try: one, two, and one for each of a few rows."""
    return sorted({1, 2 if rows % 2 == 0 else 1, rows if rows <= MOST_STREAMS else 1})


def cache_key(model: Model, federation: Federation, stage: Stage, rows: int, precision: str) -> str:
    """A text that identifies GPU, network and batch: a measured number of streams is valid for equal keys."""
    params, _ = model.init(0)
    shapes = "+".join(f"{'x'.join(map(str, v.shape))}" for v in params.values())
    if model.frozen:
        shapes += " frozen " + "+".join("x".join(map(str, v.shape)) for v in model.frozen.values())
    gpu = torch.cuda.get_device_name(federation.pool.x.device)
    parts = gpu, torch.__version__, precision, shapes, stage.local.batch, rows, stage.algorithm.name
    return "; ".join(map(str, parts))


def read_cache(file: Path, say: Callable[[str], None]) -> dict[str, int]:
    """The numbers of streams that were measured before."""
    if not file.is_file():
        return {}
    try:
        measured: dict[str, int] = json.loads(file.read_text())
    except ValueError:
        say(f"{file} cannot be read and will be written anew")
        return {}
    return measured


def write_cache(file: Path, measured: dict[str, int]) -> None:
    """Replace the file atomically, so that no other process reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(measured, indent=1))
    part.replace(file)
