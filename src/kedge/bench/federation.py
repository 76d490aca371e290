"""Speed of a federation on this machine: kedge serve and three kedge join, over Flower on loopback."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.core.errors import RequestError
from kedge.running.execute import execute
from kedge.running.folders.folder import read_lines

CLIENTS, ROUNDS, WARM_UP_ROUNDS = 3, 12, 2
END_SECONDS = 180.0  # for the whole training
ABOUT = "3 clients, all of them, 479 samples of 8×8 each, batch 20, one epoch, mlp"
EXPERIMENT = f"""
name = "federation"
rounds = {ROUNDS}
data = "digits"
model = "mlp"
partition = {{ name = "iid", clients = {CLIENTS} }}
participation.per_round = {CLIENTS}
training = {{ batch = 20, epochs = 1 }}
engine = {{ name = "sequential", device = "cpu", threads = 1 }}
"""


class FederationSpeed(NamedTuple):
    """The speed of one way to train the federation; the seconds of a round include its evaluation."""

    how: str
    samples_per_second: float
    seconds_a_round: float


def federation_speeds(say: Callable[[str], None]) -> list[FederationSpeed]:
    """Train in this process, then with a server and clients in processes of their own, without TLS."""
    if find_spec("flwr") is None:
        raise RequestError("kedge bench federation: Flower is not installed: pip install 'kedge[flower]'.")
    with TemporaryDirectory(prefix="kedge-bench-") as folder:
        experiment = Path(folder) / "federation.toml"
        experiment.write_text(EXPERIMENT)
        say("federation: one process")
        execute(resolve(read(experiment)), Path(folder) / "alone")
        say("federation: a server and three clients")
        train_on_loopback(experiment, Path(folder) / "loopback")
        names = {"alone": "one process, sequential", "loopback": "kedge serve and kedge join, on Flower"}
        return [speed_of(how, Path(folder) / name) for name, how in names.items()]


def speed_of(how: str, run: Path) -> FederationSpeed:
    """The medians over the rounds of a run after the first two."""
    times = [line["time"] for line in read_lines(run / "history.jsonl")[WARM_UP_ROUNDS:]]
    speed, seconds = (median(each[key] for each in times) for key in ("samples_per_second", "seconds"))
    return FederationSpeed(how, speed, seconds)


def train_on_loopback(experiment: Path, out: Path) -> None:
    """Train with a server and its clients, and wait for the server's end."""
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as processes:
        words = ["serve", str(experiment), "--address", address, "--insecure", "--out", str(out), "--quiet"]
        server = processes.enter_context(kedge(words, out.parent / "server.log"))
        for client in range(CLIENTS):
            own = ["--client", str(client), "--memory", str(out.parent / f"memory-{client}")]
            log = out.parent / f"client-{client}.log"
            processes.enter_context(kedge(["join", address, *own, "--insecure", "--quiet"], log))
        try:
            code = server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        said = (out.parent / "server.log").read_text().strip() or "no message"
        raise RuntimeError(f"the server failed, or had no end in {END_SECONDS:.0f} s: {said}")


@contextmanager
def kedge(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a process of its own, with its output in a file; killed at the end of the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kedge", *words], cwd=log.parent, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of the loopback interface on which no program listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
