"""Servers and clients as processes on loopback, for tests; all are killed at the end of a test.

The processes are forked from a server process that has loaded PyTorch and kedge: with four programs a test,
loading them would take longer than the training.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from kedge.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["kedge.running.federation.join", "kedge.running.federation.serve"])
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

[evaluation]
local_test = {local_test}

[engine]
name = "sequential"
precision = "{precision}"
device = "cpu"
threads = 1
"""


def write_experiment(folder: Path, method: str, **settings: object) -> Path:
    path = folder / "experiment.toml"
    values = {"rounds": 3, "per_round": 3, "precision": "fp64", "epochs": 2, "local_test": 0.0, **settings}
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
        self.started: list[ForkServerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            if process.is_alive():
                process.kill()
            process.join()
        if error is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()}")

    def start(
        self,
        log: str,
        arguments: Sequence[str],
        folder: Path | None = None,
        program: Callable[[list[str], Path, Path], None] | None = None,
    ) -> ForkServerProcess:
        """Start kedge, or another program with the same arguments."""
        output = self.folder / f"{log}.log"
        values = (list(arguments), folder or self.folder, output)
        process = CONTEXT.Process(target=program or run_kedge, args=values)
        process.start()
        self.started.append(process)
        return process

    def serve(
        self, *arguments: str, security: Sequence[str] = ("--insecure",), folder: Path | None = None
    ) -> ForkServerProcess:
        address = ["--address", f"127.0.0.1:{self.port}"]
        return self.start("serve", ["serve", *arguments, *address, *security], folder)

    def join(
        self,
        client: int,
        *arguments: str,
        security: Sequence[str] = ("--insecure",),
        folder: Path | None = None,
        program: Callable[[list[str], Path, Path], None] | None = None,
    ) -> ForkServerProcess:
        own = ["--client", str(client), "--memory", str(self.folder / f"memory-{client}")]
        address = f"127.0.0.1:{self.port}"
        return self.start(f"join-{client}", ["join", address, *own, *security, *arguments], folder, program)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.is_file() else ""


def run_kedge(arguments: list[str], folder: Path, log: Path) -> None:
    """Run the program kedge in `folder`, with its output in the file `log`; the function of a process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.argv = ["kedge", *arguments]
    main()


def ended(*processes: ForkServerProcess) -> list[int | None]:
    """The exit codes of processes, which end within END_SECONDS."""
    deadline = time.monotonic() + END_SECONDS
    for process in processes:
        process.join(timeout=max(0.1, deadline - time.monotonic()))
    return [process.exitcode for process in processes]


def kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join()


def send_signal(process: ForkServerProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)
