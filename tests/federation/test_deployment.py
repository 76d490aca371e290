"""Simulate, then deploy unchanged: processes of a server and of clients end with the simulator's model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from tests.federation.processes import Processes, ended, write_experiment
from torch import Tensor

import kedge
from kedge.config.assemble import assemble
from kedge.config.document import read
from kedge.config.experiment import resolve

pytest.importorskip("flwr")

from kedge.engines.flower.certificates import initialize

pytestmark = pytest.mark.slow
METHODS = {
    "fedavg": "fedavg",
    "switching": "fedbug(ratio=0.4) + feddyn(alpha=0.1) -> fedavg@2",
    "scaffold": "scaffold",
    "fedrod": "fedrod",
    "fedtr": "fedtr",
}


def simulate(experiment: Path, folder: Path) -> dict[str, Tensor]:
    """The model of the simulator, trained in this process."""
    kedge.run(str(experiment), out=folder)
    return final_model(folder)


def final_model(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[k] - right[k]).abs().max()) for k in left)


@pytest.mark.parametrize("name", METHODS)
def test_a_deployment_over_tls_ends_with_the_model_of_the_simulation(name: str, tmp_path: Path) -> None:
    experiment, keys = write_experiment(tmp_path, METHODS[name]), tmp_path / "keys"
    initialize(keys, ["127.0.0.1"], 3)
    with Processes(tmp_path) as processes:
        server = processes.serve(
            str(experiment), "--out", "deployed", security=["--credentials", str(keys / "server")]
        )
        clients = [
            processes.join(client, security=["--credentials", str(keys / f"client-{client}")])
            for client in range(3)
        ]
        simulated = simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
    assert largest_difference(simulated, final_model(tmp_path / "deployed")) <= 1e-12
    histories = (history(tmp_path / run) for run in ("simulated", "deployed"))
    for simulated_line, deployed_line in zip(*histories, strict=True):
        for key in ("round", "stage", "method", "clients", "rejected", "cost", "distributed.global.accuracy"):
            assert simulated_line[key] == deployed_line[key], key


def test_a_client_trains_on_the_samples_of_its_own_file(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, "feddyn(alpha=0.1)")
    data = assemble(resolve(read(str(experiment)))).federation
    for client, samples in enumerate(data.clients):
        np.savez(tmp_path / f"{client}.npz", x=data.pool.x[samples].numpy(), y=data.pool.y[samples].numpy())
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "deployed")
        clients = [processes.join(client, "--data", f"{client}.npz") for client in range(3)]
        simulated = simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
    assert largest_difference(simulated, final_model(tmp_path / "deployed")) <= 1e-12
