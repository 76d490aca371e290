"""Servers and clients as processes on loopback, for tests; all are killed at the end of a test."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import kedge

END_SECONDS = 90.0

EXPERIMENT = """
name = "small"
rounds = {rounds}
method = "{method}"

[data]
name = "synthetic"

[partition]
name = "dirichlet"
clients = 3
alpha = 0.5

[model]
name = "mlp"

[participation]
per_round = {per_round}

[training]
epochs = {epochs}
batch = 64

[engine]
name = "sequential"
precision = "{precision}"
device = "cpu"
threads = 1
"""


def write_experiment(folder: Path, method: str, **settings: object) -> Path:
    path = folder / "experiment.toml"
    values = {"rounds": 3, "per_round": 3, "precision": "fp64", "epochs": 2, **settings}
    path.write_text(EXPERIMENT.format(method=method, **values))
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


class Processes:
    """The processes of a test; `folder` has their logs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        if error is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()}")

    def start(self, log: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        source = str(Path(kedge.__file__).parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
        with (self.folder / f"{log}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "kedge", *arguments],
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=environment,
            )
        self.started.append(process)
        return process

    def serve(self, *arguments: str, security: Sequence[str] = ("--insecure",)) -> subprocess.Popen[bytes]:
        return self.start("serve", ["serve", *arguments, "--address", f"127.0.0.1:{self.port}", *security])

    def join(
        self, client: int, *arguments: str, security: Sequence[str] = ("--insecure",)
    ) -> subprocess.Popen[bytes]:
        own = ["--client", str(client), "--memory", str(self.folder / f"memory-{client}")]
        return self.start(f"join-{client}", ["join", f"127.0.0.1:{self.port}", *own, *security, *arguments])

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.is_file() else ""


def ended(*processes: subprocess.Popen[bytes]) -> list[int]:
    """The exit codes of processes, which end within END_SECONDS."""
    deadline = time.monotonic() + END_SECONDS
    return [process.wait(timeout=max(0.1, deadline - time.monotonic())) for process in processes]


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
