"""Rounds of Flower's simulation on Ray. It runs in a process of its own (flower_app.py), round by round."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from kedge.bench.peers.flower_app import Plan, save_plan
from kedge.bench.workloads import Workload
from kedge.core.tree import Leaves
from kedge.data.federation import Federation

PROGRAM = "import sys; from kedge.bench.peers.flower_app import simulate; simulate(sys.argv[1])"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ANSWER_SECONDS = 900.0  # then the simulation has failed; its start may take a minute
END_SECONDS = 30.0  # then a simulation that should end is killed
MOST_ON_A_GPU = 16  # maximum number of processes that share a GPU


class PeerFailed(RuntimeError):
    """Another framework did not do the work."""


@dataclass(frozen=True)
class Simulation:
    """A running simulation. It waits between requests."""

    process: subprocess.Popen[str]
    folder: Path
    samples: int  # of a round

    def round(self, number: int) -> int:
        """Train one round."""
        self.request("round\n", "ready")
        return self.samples

    def model(self) -> Leaves:
        """The averaged model."""
        self.request("model\n", "saved")
        with np.load(self.folder / "model.npz") as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}

    def request(self, line: str, expected: str) -> None:
        """Send a line and wait for the answer. Raise PeerFailed if it is not as expected."""
        answer = send(self.process, line)
        if answer != expected:
            raise PeerFailed(answer or last_line(self.folder / "log"))


@contextmanager
def flower(work: Workload, data: Federation) -> Iterator[Simulation]:
    """Start a simulation of the workload, and end it on exit."""
    device = data.pool.x.device.type
    with TemporaryDirectory(prefix="kedge-flower-") as name:
        folder = Path(name)
        save_plan(folder, Plan(work, device, worker_count(work, device)), data)
        with start(folder) as process:
            simulation = Simulation(process, folder, work.per_round * work.samples)
            try:
                simulation.request("", "ready")
                yield simulation
            finally:
                end(process)


def start(folder: Path) -> subprocess.Popen[str]:
    """Start the process of the simulation, with a log in its folder."""
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **QUIET},
        )


def worker_count(work: Workload, device: str) -> int:
    """The number of clients that train at the same time: one on each CPU."""
    cpus = len(os.sched_getaffinity(0))
    return min(cpus, work.per_round, *([MOST_ON_A_GPU] if device == "cuda" else []))


def send(process: subprocess.Popen[str], line: str) -> str:
    """Send a line to the simulation. Return its answer, or "" if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # of an ended process; then readline returns ""
        process.stdin.write(line)
        process.stdin.flush()
    if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
        raise PeerFailed(f"no answer for {ANSWER_SECONDS:.0f} s")
    return process.stdout.readline().strip()


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    return lines[-1] if lines else "the simulation ended without a word"


def end(process: subprocess.Popen[str]) -> None:
    """End a simulation: it ends its own processes when its standard input is closed."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
