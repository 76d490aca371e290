"""Called as a script: measure rounds of a federation on loopback by the size of the model.

python -m tests.federation.sizing [4KB,3MB,45MB]    the table by the size of the model
python -m tests.federation.sizing latency           a round with 0 to 100 ms between server and clients
python -m tests.federation.sizing bytes             bytes of arrays, of Flower's messages, of HTTP and TLS

Three clients and a server over TLS, one local step a round. Beside it, with the same bytes: the same
training in a simulation; Flower's transport alone, without kedge's runner; Flower's own server, clients and
FedAvg, whose clients send the model back untrained.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from tests.federation.processes import CONTEXT, Processes, ended, free_port, wait_until
from tests.federation.slow_network import SlowNetwork

import kedge
from kedge.engines.flower.certificates import initialize
from kedge.engines.flower.messages import from_record, to_record
from kedge.engines.flower.superlink import SuperLink
from kedge.engines.flower.supernode import Credentials, SuperNode

CLIENTS, ROUNDS = 3, 8
DELAYS = (0.0, 0.01, 0.05, 0.1)  # seconds in each direction
APP = Path(__file__).parent / "stock_flower"
MODELS = {
    "4KB": ("mlp(hidden=[36])", "[16]"),
    "3MB": ("standard-cnn", "[3, 32, 32]"),
    "45MB": ("resnet18(stem='cifar')", "[3, 32, 32]"),
}
EXPERIMENT = """
name = "sizing"
rounds = {rounds}
method = "fedavg"
data = "synthetic(samples=60, features={features})"
partition = "iid(clients=3)"
model = "{model}"
training = {{ epochs = 1, batch = 16 }}
evaluation = {{ every = {rounds} }}
checkpoint = {{ every = 1 }}
engine = {{ name = "sequential", device = "cpu", threads = 1 }}
"""

CONNECTION = """
[superlink]
default = "local"
[superlink.local]
address = "{address}"
insecure = true
"""


class Measured(NamedTuple):
    """One row of the table."""

    megabytes: float  # of the model
    federation: float  # seconds a round
    simulation: float
    transport: float
    flower: float
    server: float  # peak memory of the server in MB
    client: float


def main() -> None:
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else list(MODELS)
    if names[0] in ("latency", "bytes"):
        print_latencies() if names[0] == "latency" else print_bytes()
        return
    print("| model | kedge, s | training, s | transport, s | Flower, s | server, MB | client, MB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in names:
        row = measure(*MODELS[name])
        print(
            f"| {row.megabytes:.3g} MB | {row.federation:.3f} | {row.simulation:.3f} | {row.transport:.3f} "
            f"| {row.flower:.2f} | {row.server:.0f} | {row.client:.0f} |",
            flush=True,
        )


def print_latencies() -> None:
    """A table of seconds a round, by the milliseconds in each direction."""
    print("| model |" + "".join(f" {1000 * delay:.0f} ms |" for delay in DELAYS))
    print("|---|" + "---:|" * len(DELAYS))
    for name in ("4KB", "3MB"):
        model, features = MODELS[name]
        print(f"| {name} |", end="", flush=True)
        for delay in DELAYS:
            with TemporaryDirectory() as top:
                experiment = write_sizing(Path(top), model, features)
                run_federation(experiment, Path(top), delay)
                print(f" {seconds_a_round(Path(top) / 'deployed'):.2f} |", end="", flush=True)
        print()


def print_bytes() -> None:
    """A table of the bytes of a whole training in each direction: arrays, with framing, on the network."""
    print("| model | | arrays | with Flower's framing | on the network |")
    print("|---|---|---:|---:|---:|")
    for name, (model, features) in MODELS.items():
        with TemporaryDirectory() as top:
            folder = Path(top)
            network: list[SlowNetwork] = []
            run_federation(write_sizing(folder, model, features), folder, 1e-4, network)
            counts = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d", traffic_line(folder))]
            arrays_down, *evaluations, framed_down, arrays_up, framed_up = counts
            arrays_down += sum(evaluations)
            for way, arrays, framed, total in (
                ("down", arrays_down, framed_down, network[0].sent),
                ("up", arrays_up, framed_up, network[0].received),
            ):
                print(f"| {name} | {way} | {arrays:,} | {framed:,} | {total:,} |", flush=True)


def traffic_line(folder: Path) -> str:
    """The line with the bytes that the server prints at the end."""
    lines = (folder / "serve.log").read_text().splitlines()
    return next(line for line in lines if line.startswith("sent "))


def write_sizing(folder: Path, model: str, features: str) -> Path:
    """Write the experiment of a model."""
    path = folder / "sizing.toml"
    path.write_text(EXPERIMENT.format(rounds=ROUNDS, model=model, features=features))
    return path


def measure(model: str, features: str) -> Measured:
    """Measure one model."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        experiment = write_sizing(folder, model, features)
        memory = run_federation(experiment, folder)
        kedge.run(str(experiment), out=folder / "simulated")
        size = sum(v.nbytes for v in load_file(folder / "simulated" / "model.safetensors").values())
        return Measured(
            size / 1e6,
            seconds_a_round(folder / "deployed"),
            seconds_a_round(folder / "simulated"),
            median(transport_seconds(size)),
            median(flower_seconds(size, folder)),
            memory[0],
            max(memory[1:]),
        )


def run_federation(
    experiment: Path, folder: Path, delay: float = 0.0, networks: list[SlowNetwork] | None = None
) -> list[float]:
    """Train the experiment over TLS; return the peak memory of the server and of each client in MB.

    `delay`: seconds that bytes need in each direction. The network is added to `networks`.
    """
    keys = folder / "keys"
    initialize(keys, ["127.0.0.1"], CLIENTS)
    with Processes(folder) as processes, ExitStack() as network:
        server = processes.serve(
            str(experiment), "--out", "deployed", security=["--credentials", str(keys / "server")]
        )
        if delay:
            proxy = network.enter_context(SlowNetwork(processes.port, free_port(), delay))
            processes.port = proxy.port
            if networks is not None:
                networks.append(proxy)
        clients = [
            processes.join(number, security=["--credentials", str(keys / f"client-{number}")])
            for number in range(CLIENTS)
        ]
        peaks = watch_memory([server, *clients])
        assert ended(server, *clients) == [0] * (1 + CLIENTS)
    return peaks


def watch_memory(processes: Sequence[ForkServerProcess]) -> list[float]:
    """The peak memory of processes in MB, read until the first ends."""
    peaks = [0.0] * len(processes)
    while processes[0].is_alive():
        for number, process in enumerate(processes):
            peaks[number] = max(peaks[number], peak_memory(process))
        time.sleep(0.1)
    return peaks


def peak_memory(process: ForkServerProcess) -> float:
    """The peak memory of a process so far in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")), 0.0)


def seconds_a_round(folder: Path) -> float:
    """The median of a run's rounds, without the first and the last, which also start and evaluate."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return float(median(line["time"]["seconds"] for line in lines[1:-1]))


def transport_seconds(size: int) -> list[float]:
    """Seconds of rounds in which each client sends one tensor back, over Flower's transport."""
    tensors = {"model": torch.zeros(size // 4)}
    with SuperLink("127.0.0.1", free_port(), None, False) as link:
        clients = [CONTEXT.Process(target=echo, args=(link.address, ROUNDS + 1)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        wait_until(lambda: len(link.nodes()) == CLIENTS, "all clients are connected")
        seconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            numbers = [link.send(node, to_record("do", {}, tensors)) for node in link.nodes()]
            for number in numbers:
                while (record := link.receive(number)) is None:
                    time.sleep(0.005)
                from_record(record)
            seconds.append(time.perf_counter() - start)
        for node in link.nodes():  # a client that ends withdraws its last reply
            link.send(node, to_record("end", {}, {}))
        for client in clients:
            client.join()
    return seconds[1:]


def echo(address: str, messages: int) -> None:
    """A client that sends the tensors of its messages back; the function of a process."""
    with SuperNode(address, Credentials()) as node:
        for _ in range(messages):
            message = node.receive()
            node.reply(message, to_record("echo", {}, from_record(message.content).tensors))


def flower_seconds(size: int, folder: Path) -> list[float]:
    """Seconds of rounds of Flower's own commands: a SuperLink, SuperNodes and its FedAvg."""
    app, home, port = folder / "app", folder / "home", free_port()
    shutil.copytree(APP, app)
    shutil.copy(Path(__file__).parents[2] / "LICENSE", app)
    home.mkdir()
    address = f"127.0.0.1:{port}"
    connection = (
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{address}"\ninsecure = true\n'
    )
    (home / "config.toml").write_text(connection)
    binary = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(binary), os.environ["PATH"]]),  # Flower's programs start each other
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONPATH": os.pathsep.join([str(app), os.environ.get("PYTHONPATH", "")]),
    }
    results = folder / "seconds.json"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}-{len(started)}.log").open("wb") as log:
            command = [str(binary / name), *arguments]
            started.append(subprocess.Popen(command, cwd=app, env=environment, stdout=log, stderr=log))

    try:
        own = ["--insecure", "--host", "127.0.0.1", "--port"]
        start("flower-superlink", "--disable-runtime-dependency-installation", *own, str(port))
        time.sleep(5)
        for _ in range(CLIENTS):
            start("flower-supernode", "--superlink", address, *own, str(free_port()))
        time.sleep(5)
        start(
            "flwr", "run", ".", "local", "--run-config", f'rounds={ROUNDS} bytes={size} results="{results}"'
        )
        wait_until(results.is_file, "Flower's rounds are finished", 300)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
    seconds: list[float] = json.loads(results.read_text())
    return seconds


if __name__ == "__main__":
    main()
