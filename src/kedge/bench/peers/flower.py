"""Rounds of Flower's simulation (on Ray), stepped from outside: the simulation itself is in flower_app."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from kedge.bench.loops import Round
from kedge.bench.peers.flower_app import Plan, put
from kedge.bench.workloads import Workload
from kedge.core.tree import Leaves
from kedge.data.federation import Federation

PROGRAM = "import sys; from kedge.bench.peers.flower_app import simulate; simulate(sys.argv[1])"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ANSWER_SECONDS = 900.0  # until a simulation is given up; its start may take a minute
END_SECONDS = 30.0  # until a simulation that was told to end is killed
MOST_ON_A_GPU = 16  # processes that share one


class PeerFailed(RuntimeError):
    """Another framework did not do the work."""


class Simulation(NamedTuple):
    """A simulation that runs: a round of it, and its averaged model."""

    round: Round
    model: Callable[[], Leaves]


@contextmanager
def flower(work: Workload, data: Federation) -> Iterator[Simulation]:
    """Start the simulation, which waits while it is not asked for a round."""
    device = data.pool.x.device.type
    plan = Plan(work, device, workers(work, device))
    with TemporaryDirectory(prefix="kedge-flower-") as name:
        folder = Path(name)
        put(folder, plan, data)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **QUIET},
            )

        def ask(question: str, answer: str) -> None:
            said = told(process, question)
            if said != answer:
                raise PeerFailed(said or last_line(folder / "log"))

        def round(number: int) -> int:
            ask("round\n", "ready")
            return work.per_round * work.samples

        def model() -> Leaves:
            ask("model\n", "saved")
            with np.load(folder / "model.npz") as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}

        with process:
            try:
                ask("", "ready")
                yield Simulation(round, model)
            finally:
                end(process)


def workers(work: Workload, device: str) -> int:
    """Clients that train at the same time: one a CPU, no more than a round has."""
    cpus = len(os.sched_getaffinity(0))
    return min(cpus, work.per_round, *([MOST_ON_A_GPU] if device == "cuda" else []))


def told(process: subprocess.Popen[str], question: str) -> str:
    """What the simulation answers; nothing if it is no more."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # then there is no answer either
        process.stdin.write(question)
        process.stdin.flush()
    if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
        raise PeerFailed(f"no answer for {ANSWER_SECONDS:.0f} s")
    return process.stdout.readline().strip()


def last_line(log: Path) -> str:
    """What was said last before the end."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    return lines[-1] if lines else "the simulation ended without a word"


def end(process: subprocess.Popen[str]) -> None:
    """Let the simulation end its own processes."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
