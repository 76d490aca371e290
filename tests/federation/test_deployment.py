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


LOCAL_METRICS = [
    f"{model}.local.{kind}" for model in ("distributed", "personal") for kind in ("accuracy", "loss")
]
LABELS = [f"class {number}" for number in range(10)]


def local_accuracies(folder: Path) -> list[dict[str, Any]]:
    """The accuracies by client of the models that clients have."""
    lines = (json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines())
    return [{k: line[k] for k in LOCAL_METRICS if k.endswith("accuracy")} for line in lines]


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
    experiment, keys = write_experiment(tmp_path, METHODS[name], local_test=0.2), tmp_path / "keys"
    initialize(keys, ["127.0.0.1"], 3)
    with Processes(tmp_path) as processes:
        server = processes.serve(
            str(experiment), "--out", "deployed", security=["--credentials", str(keys / "server")]
        )
        clients = [
            processes.join(
                client, "--share-metrics", security=["--credentials", str(keys / f"client-{client}")]
            )
            for client in range(3)
        ]
        simulated = simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
    assert largest_difference(simulated, final_model(tmp_path / "deployed")) <= 1e-12
    histories = (history(tmp_path / run) for run in ("simulated", "deployed"))
    for simulated_line, deployed_line in zip(*histories, strict=True):
        for key in ("round", "stage", "method", "clients", "rejected", "cost", "distributed.global.accuracy"):
            assert simulated_line[key] == deployed_line[key], key
        for key in LOCAL_METRICS:
            assert abs(simulated_line[key] - deployed_line[key]) <= 1e-12, key
    assert local_accuracies(tmp_path / "simulated") == local_accuracies(tmp_path / "deployed")


def write_sites(experiment: Path, folder: Path) -> None:
    """Files with each client's training samples and local test, and the names of the labels."""
    data = assemble(resolve(read(str(experiment)))).federation
    for client, parts in enumerate(zip(data.clients, data.local_tests, strict=True)):
        for name, rows in zip((f"{client}.npz", f"validation-{client}.npz"), parts, strict=True):
            x, y = data.pool.x[rows].numpy(), data.pool.y[rows].numpy()
            np.savez(folder / name, x=x, y=y, label_names=np.array(LABELS))


def test_clients_train_and_evaluate_on_their_own_files_and_share_what_they_agree_to(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, "fedper", local_test=0.2)
    write_sites(experiment, tmp_path)
    with np.load(tmp_path / "2.npz") as arrays:
        np.savez(tmp_path / "swapped.npz", x=arrays["x"], y=arrays["y"], label_names=np.array(LABELS[::-1]))
        np.savez(tmp_path / "integers.npz", x=arrays["x"].astype(np.uint8), y=arrays["y"])
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "deployed", "--json", "--labels", ",".join(LABELS))
        files = [
            ["--data", f"{client}.npz", "--validation", f"validation-{client}.npz"] for client in range(2)
        ]
        clients = [processes.join(0, *files[0], "--share-metrics"), processes.join(1, *files[1])]
        assert ended(processes.join(2, "--data", "swapped.npz")) == [3]
        assert "label 0 means 'class 0' on the server and 'class 9' on the client" in processes.log("join-2")
        assert ended(processes.join(2, "--data", "integers.npz")) == [3]
        assert "x is uint8; the federation's samples are float32" in processes.log("join-2")
        clients.append(processes.join(2, "--data", "2.npz"))
        simulated = simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
        events = json_lines(processes.log("serve"))
        log = [line for n in range(3) for line in processes.log(f"join-{n}").splitlines()]
    assert largest_difference(simulated, final_model(tmp_path / "deployed")) <= 1e-12
    alone, apart = (local_accuracies(tmp_path / run) for run in ("simulated", "deployed"))
    for alone_line, apart_line in zip(alone, apart, strict=True):
        for name, (first, *_) in alone_line.items():
            assert apart_line[name] == [first, None, None]
    (own,) = (tmp_path / "memory-1").glob("*/metrics.jsonl")
    logged = [json.loads(line) for line in own.read_text().splitlines()]
    assert [line["personal.local.accuracy"] for line in logged] == [
        line["personal.local.accuracy"][1] for line in alone
    ]
    assert not list((tmp_path / "memory-2").glob("*/metrics.jsonl"))
    assert sum("the labels mean the same as on the server: class 0, class 1" in line for line in log) == 3
    check_events(events)


def json_lines(text: str) -> list[dict[str, Any]]:
    """The events of a server, which are followed by its result as one document."""
    lines = text.splitlines()
    end = lines.index("{")
    assert json.loads("\n".join(lines[end:]))["runs"][0]["rounds"] == 3
    return [json.loads(line) for line in lines[:end]]


def check_events(events: list[dict[str, Any]]) -> None:
    """Check the events of a federation with one client that shares its metrics and two that are refused."""
    kinds = [event["event"] for event in events]
    assert (kinds.count("refused"), kinds.count("connect"), kinds.count("end")) == (2, 3, 1)
    assert (kinds.count("round"), kinds.count("round end"), kinds.count("history")) == (3, 3, 3)
    assert (kinds.count("order"), kinds.count("reply")) == (11, 11)  # two clients evaluate the last round
    refusals = [event["reason"] for event in events if event["event"] == "refused"]
    assert "label 0 means" in refusals[0]
    assert "x is uint8" in refusals[1]
    evaluated = [(event["client"], event["evaluated"]) for event in events if event["event"] == "evaluation"]
    assert evaluated == [(0, 1), (0, 2), (0, 3)]
    (last,) = (event for event in events if event["event"] == "end")
    assert last["arrays"]["down"] == sum(
        event["bytes"] for event in events if event["event"] == "order" and event["message"] == "train"
    )
