"""Simulate, then deploy unchanged: processes of a server and of clients end with the simulator's model."""

import json
from pathlib import Path

import pytest
import safetensors.torch
from tests.federation.processes import Processes, ended, write_experiment
from torch import Tensor

import kedge

pytest.importorskip("flwr")

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
    return safetensors.torch.load_file(folder / "model.safetensors")


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[k] - right[k]).abs().max()) for k in left)


@pytest.mark.parametrize("name", METHODS)
def test_a_deployment_ends_with_the_model_of_the_simulation(name: str, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, METHODS[name])
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "deployed")
        clients = [processes.join(client) for client in range(3)]
        simulated = simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
    deployed = safetensors.torch.load_file(tmp_path / "deployed" / "model.safetensors")
    assert largest_difference(simulated, deployed) <= 1e-12
    lines = [
        [json.loads(line) for line in (tmp_path / run / "history.jsonl").read_text().splitlines()]
        for run in ("simulated", "deployed")
    ]
    for simulated_line, deployed_line in zip(*lines, strict=True):
        for key in ("round", "stage", "method", "clients", "rejected", "cost", "distributed.global.accuracy"):
            assert simulated_line[key] == deployed_line[key], key
