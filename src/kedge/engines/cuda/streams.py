"""Into how many stacks, side by side on a GPU, the rows of a round are best split: measured, and kept.

One stack is best where its kernels fill the GPU; several where they are many and small (lanes.py). Trying a
number means compiling for it, so it is tried only before work that repays this, and what was found is kept in
the cache folder, by GPU, network, batch, rows and precision.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.data.download.cache import cache_folder
from kedge.data.federation import Federation

REPAID = 10  # times what the trial costs: the work must take that long
BRANCHES = 16  # rows up to which one stream for each is tried
Seconds = Callable[[int], float]  # number of streams -> time of the same work


def best(
    model: Model, federation: Federation, stage: Stage, rows: int, precision: str,
    seconds: Seconds, to_come: Callable[[], float], cost: float, say: Callable[[str], None],
) -> int:  # fmt: skip
    """The number for this work: known, tried now if the seconds to come repay `cost` a try, or one."""
    key = name(model, federation, stage, rows, precision)
    file = cache_folder() / "streams.json"
    known = read(file, say)
    if key in known:
        return known[key]
    some = tried(rows)
    if to_come() < REPAID * cost * len(some):
        return 1
    say(f"trying {', '.join(map(str, some))} streams, about {cost * len(some):.0f} s")
    taken = {count: seconds(count) for count in some}
    found = min(taken, key=taken.__getitem__)
    keep(file, {**read(file, say), key: found})
    return found


def tried(rows: int) -> list[int]:
    """Numbers of streams worth a try: one, two, and one for each of a few rows."""
    return sorted({1, 2 if rows % 2 == 0 else 1, rows if rows <= BRANCHES else 1})


def name(model: Model, federation: Federation, stage: Stage, rows: int, precision: str) -> str:
    """What a finding holds for."""
    params, _ = model.init(0)
    shapes = "+".join(f"{'x'.join(map(str, v.shape))}" for v in params.values())
    if model.frozen:
        shapes += " frozen " + "+".join("x".join(map(str, v.shape)) for v in model.frozen.values())
    gpu = torch.cuda.get_device_name(federation.pool.x.device)
    what = gpu, torch.__version__, precision, shapes, stage.local.batch, rows, stage.algorithm.name
    return "; ".join(map(str, what))


def read(file: Path, say: Callable[[str], None]) -> dict[str, int]:
    """What was found before."""
    if not file.is_file():
        return {}
    try:
        known: dict[str, int] = json.loads(file.read_text())
    except ValueError:
        say(f"{file} cannot be read and will be written anew")
        return {}
    return known


def keep(file: Path, known: dict[str, int]) -> None:
    """Write all at once, so that no reader sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(known, indent=1))
    part.replace(file)
