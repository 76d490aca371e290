"""A private federation of real processes, whose server is killed in mid-training."""

import json
import re
from pathlib import Path

import pytest
from tests.federation.processes import Processes, ended, kill, wait_until, write_experiment
from tests.federation.reference import history

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from kedge.privacy.accountant import Accountant
from kedge.privacy.settings import Privacy
from kedge.running.federation.joined_clients import FILE

pytestmark = pytest.mark.slow
ROUNDS, SHARE = 6, 0.8
PRIVACY = Privacy(clip=0.5, noise=1.0)


def write_private_experiment(folder: Path) -> Path:
    """Three clients with Poisson sampling; a round takes a second or more."""
    path = write_experiment(folder, "fedavg(weights='uniform')", rounds=ROUNDS, epochs=60)
    text = path.read_text().replace("per_round = 3", f'rule = "poisson"\nshare = {SHARE}')
    text = text.replace("[training]\n", '[training]\non_divergence = "drop"\n')
    path.write_text(f"{text}\n[privacy]\nclip = {PRIVACY.clip}\nnoise = {PRIVACY.noise}\n")
    return path


def test_a_private_federation_continues_after_its_server_was_killed_and_names_no_participant(
    tmp_path: Path,
) -> None:
    experiment, deployed = write_private_experiment(tmp_path), tmp_path / "run"
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "run")
        wait_until(lambda: "listening" in processes.log("serve"), "the server")
        assert ended(processes.join(0, "--explain")) == [0]
        explained = processes.log("join-0")
        clients = [processes.join(client) for client in range(3)]
        wait_until(lambda: len(history(deployed)) >= 2, "the second round")
        assert server.is_alive()
        kill(server)
        server = processes.serve("--resume", "run", "--json")
        assert ended(server, *clients) == [0, 0, 0, 0]
        logs = {name: processes.log(name) for name in ("serve", "join-0", "join-1", "join-2")}
    assert "no loss, no weight" in explained
    assert "number of your training samples" not in explained
    accountant = Accountant(PRIVACY, SHARE)
    lines = history(deployed)
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    for line in lines:
        assert not {"clients", "rejected", "time", "cost", "train.loss"} & line.keys()
        assert line["privacy.epsilon"] == accountant.epsilon(line["round"])
        assert line["privacy.noise_source"] == "system"
    assert [row["samples"] for row in json.loads((deployed / FILE).read_text())] == [0, 0, 0]
    events = [line for line in logs["serve"].splitlines() if line.startswith('{"time"')]
    kinds = {json.loads(line)["event"] for line in events}
    assert kinds == {"listening", "connect", "history", "message", "end"}
    assert not re.search(r'"samples": [^n]|"bytes"|"clients": \[|"arrays"', "".join(events))
    assert "bytes of arrays" not in logs["serve"]
    assert all("loss" not in logs[f"join-{client}"].replace(explained, "") for client in range(3))
