"""Failures of a federation, with real processes: each is bounded in time and ends as the undisturbed run."""

from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
from tests.federation.processes import Processes, ended, kill, wait_until, write_experiment
from tests.federation.test_deployment import (
    final_model,
    history,
    largest_difference,
    local_accuracies,
    simulate,
)

pytest.importorskip("flwr")

from kedge.engines.flower.certificates import initialize, new_key, write_private

pytestmark = pytest.mark.slow
LONG = 60  # epochs of a round that takes a second or more


def test_a_server_that_is_killed_in_a_round_resumes_and_the_end_is_the_same(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, "scaffold", epochs=LONG, rounds=4, local_test=0.2)
    keys = tmp_path / "keys"
    initialize(keys, ["127.0.0.1"], 3)
    security = ["--credentials", str(keys / "server")]
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "deployed", security=security)
        clients = [
            processes.join(
                client, "--share-metrics", security=["--credentials", str(keys / f"client-{client}")]
            )
            for client in range(3)
        ]
        wait_until(lambda: "round 2:" in processes.log("join-0"), "the second round of client 0")
        kill(server)
        server = processes.serve("--resume", "deployed", security=security)
        simulated = simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
    assert largest_difference(simulated, final_model(tmp_path / "deployed")) <= 1e-12
    assert [line["round"] for line in history(tmp_path / "deployed")] == [1, 2, 3, 4]
    assert local_accuracies(tmp_path / "simulated") == local_accuracies(tmp_path / "deployed")


def test_a_client_whose_key_is_not_registered_is_refused(tmp_path: Path) -> None:
    experiment, keys = write_experiment(tmp_path, "fedavg"), tmp_path / "keys"
    initialize(keys, ["127.0.0.1"], 3)
    (keys / "client-1" / "key.pem").unlink()
    write_private(keys / "client-1" / "key.pem", new_key())
    with Processes(tmp_path) as processes:
        processes.serve(str(experiment), security=["--credentials", str(keys / "server")])
        wait_until(lambda: "listening" in processes.log("serve"), "the server")
        security = ["--credentials", str(keys / "client-1"), "--patience", "1"]
        assert ended(processes.join(1, security=security)) == [2]
        assert "does not accept this client's key" in processes.log("join-1")
        assert "client 1 is connected" not in processes.log("serve")


def test_a_client_with_another_experiment_is_refused_and_plain_text_does_not_leave_loopback(
    tmp_path: Path,
) -> None:
    experiment = write_experiment(tmp_path, "fedavg")
    other = tmp_path / "other"
    other.mkdir()
    write_experiment(other, "fedprox(mu=0.1)")
    with Processes(tmp_path) as processes:
        processes.serve(str(experiment))
        wait_until(lambda: "listening" in processes.log("serve"), "the server")
        assert ended(processes.join(0, "--experiment", str(other / "experiment.toml"))) == [2]
        assert "the server trains another experiment" in processes.log("join-0")
        outside = processes.start(
            "outside", ["serve", str(experiment), "--insecure", "--address", "0.0.0.0:1"]
        )
        assert ended(outside) == [2]
        assert "without TLS everyone on the network could read" in processes.log("outside")


def test_a_site_can_read_its_uploads_before_and_a_client_whose_data_do_not_fit_is_refused(
    tmp_path: Path,
) -> None:
    experiment = write_experiment(tmp_path, "fedtr")
    np.savez(tmp_path / "bad.npz", x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    with Processes(tmp_path) as processes:
        processes.serve(str(experiment))
        assert ended(processes.join(0, "--explain")) == [0]
        text = processes.log("join-0")
        assert "centroids: mean [10, 64], share [10]" in text
        assert "The server learns which classes you have, and how often" in text
        assert ended(processes.join(1, "--data", "bad.npz")) == [3]
        assert "x has samples of shape (3,)" in processes.log("join-1")
        wait_until(lambda: "a client was refused: client 1" in processes.log("serve"), "the refusal")
        assert "is connected" not in processes.log("serve")


def test_a_simulation_and_a_federation_do_not_resume_each_other(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, "scaffold", rounds=1)
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "deployed")
        clients = [processes.join(client) for client in range(3)]
        simulate(experiment, tmp_path / "simulated")
        assert ended(server, *clients) == [0, 0, 0, 0]
        (tmp_path / "deployed" / "model.safetensors").unlink()
        assert ended(processes.start("run", ["run", "--resume", "deployed"])) == [2]
        assert "kedge serve --resume deployed" in processes.log("run").replace("\n", " ")
        assert ended(processes.serve("--resume", "simulated")) == [2]
        assert "kedge run --resume simulated" in processes.log("serve").replace("\n", " ")


OWN_METHOD = """from dataclasses import replace
import kedge

def method(mu: float = 0.1) -> kedge.Algorithm:
    return replace(kedge.fedprox(mu), name="own")
"""


def test_a_method_of_the_operator_runs_only_on_sites_that_have_the_same_file(tmp_path: Path) -> None:
    sites = [tmp_path / name for name in ("server", "site-0", "site-1", "site-2")]
    for site in sites:
        site.mkdir()
        (site / "own.py").write_text(OWN_METHOD)
        write_experiment(site, "own.py:method(mu=0.2)")
    (sites[2] / "own.py").write_text(OWN_METHOD + "# changed")
    with Processes(tmp_path) as processes:

        def join(site: int, *arguments: str) -> ForkServerProcess:
            return processes.join(site, *arguments, folder=sites[1 + site])

        server = processes.serve("experiment.toml", "--out", "deployed", folder=sites[0])
        wait_until(lambda: "listening" in processes.log("serve"), "the server")
        assert ended(join(0)) == [2]
        assert "kedge executes no file because a server requests it" in processes.log("join-0")
        assert ended(join(1, "--experiment", "experiment.toml")) == [2]
        assert "your own code in the experiment differs" in processes.log("join-1")
        (sites[2] / "own.py").write_text(OWN_METHOD)
        clients = [join(site, "--experiment", "experiment.toml") for site in range(3)]
        assert ended(server, *clients) == [0, 0, 0, 0]
    assert [line["method"] for line in history(sites[0] / "deployed")] == ["own"] * 3
