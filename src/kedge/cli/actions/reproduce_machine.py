"""The machine of `kedge reproduce`: its number of processes, and its description in the records."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime

import torch

from kedge.config.assemble import device_of
from kedge.config.experiment import EngineChoice
from kedge.reproduce.plan import Run
from kedge.reproduce.records import Sitting
from kedge.running.open_engine import RAY
from kedge.version import __version__

WORKERS = 8  # processes on a GPU without --workers


def worker_count(runs: Sequence[Run], workers: int) -> int:
    """The number of processes: `workers`, or if it is 0, several only if programs are compiled for a GPU."""
    engine: EngineChoice = runs[0].experiment.engine
    if engine.name == RAY:
        return 1  # this process, which spreads the runs over a cluster
    if workers or device_of(engine) == "cpu" or engine.name in ("sequential", "stacked"):
        return workers or 1
    programs = len({(str(run.experiment.stages), str(run.experiment.model)) for run in runs})
    return min(WORKERS, programs)


def new_sitting(command: str, runs: Sequence[Run]) -> Sitting:
    """A record of this command on this machine."""
    engine: EngineChoice = runs[0].experiment.engine
    on_gpu = device_of(engine) == "cuda"
    hardware = torch.cuda.get_device_name() if on_gpu else platform.machine() + " CPU"
    if engine.address:
        hardware = f"the cluster at {engine.address}"
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Sitting(started, command, hardware, __version__, torch.__version__)
