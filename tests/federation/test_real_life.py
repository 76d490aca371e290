"""Clients that are killed, cheat, join or answer late, or lose their memory, as real processes.

Every end is compared with a training in one process that leaves the same uploads out (reference.py).
"""

import re
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.federation.processes import Processes, ended, kill, send_signal, wait_until, write_experiment
from tests.federation.reference import history, rejections, train_again
from tests.federation.test_deployment import final_model, largest_difference

pytest.importorskip("flwr")

from tests.federation.misbehaving import (
    ATTACKED,
    BAD_UPLOADS,
    REPLAY,
    answer_late,
    die_in_a_step,
    send_bad_uploads,
)

from kedge.core.server import NOT_JOINED
from kedge.engines.flower.certificates import initialize
from kedge.engines.flower.member_exchange import NO_ANSWER, SKIPPED
from kedge.running.federation.joined_clients import FILE, read_joined

pytestmark = pytest.mark.slow
DEADLINE = 4.0  # seconds
LATE_ROUNDS = 6  # more than a client trains while the test stops it


@pytest.mark.parametrize("loses", [False, True], ids=["keeps its memory", "loses its memory"])
def test_a_client_that_is_killed_in_a_local_step_returns_and_the_end_has_the_same_bits(
    loses: bool, tmp_path: Path
) -> None:
    experiment, keys, deployed = write_experiment(tmp_path, "scaffold"), tmp_path / "keys", tmp_path / "run"
    initialize(keys, ["127.0.0.1"], 3)
    security = [["--credentials", str(keys / f"client-{client}")] for client in range(3)]
    with Processes(tmp_path) as processes:
        server = processes.serve(
            str(experiment), "--out", "run", security=["--credentials", str(keys / "server")]
        )
        dies = processes.join(1, security=security[1], program=partial(die_in_a_step, 2, 2))
        clients = [processes.join(client, security=security[client]) for client in (0, 2)]
        assert ended(dies) == [-signal.SIGKILL]
        if loses:
            for memory in (tmp_path / "memory-1").glob("*/memory-*"):
                memory.unlink()
        clients.append(processes.join(1, security=security[1]))
        assert ended(server, *clients) == [0, 0, 0, 0]
        log = processes.log("serve")
    assert "client 1 is connected again" in log
    assert ("client 1 has lost its memory of round 1" in log) == loses
    assert rejections(deployed) == {1: {}, 2: {}, 3: {}}
    again = train_again(experiment, deployed, {2: 1} if loses else {})
    assert largest_difference(again, final_model(deployed)) == 0


def test_a_client_joins_late_and_a_restarted_server_repeats_the_round_in_which_it_connected(
    tmp_path: Path,
) -> None:
    experiment, deployed = write_experiment(tmp_path, "scaffold", rounds=LATE_ROUNDS), tmp_path / "run"
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "run", "--start-with", "2")
        clients = [processes.join(client) for client in (0, 1)]
        wait_until(lambda: len(history(deployed)) >= 1, "the first round")
        send_signal(clients[0], signal.SIGSTOP)  # its round does not end
        clients.append(processes.join(2))
        wait_until(lambda: "client 2 is connected" in processes.log("serve"), "the late client")
        kill(server)
        send_signal(clients[0], signal.SIGCONT)
        server = processes.serve("--resume", "run")
        assert ended(server, *clients) == [0, 0, 0, 0]
    first = read_joined(deployed / FILE)[2].first_round
    assert 3 <= first <= LATE_ROUNDS  # client 0 was stopped after round 1
    assert rejections(deployed) == {
        r: {2: NOT_JOINED} if r < first else {} for r in range(1, LATE_ROUNDS + 1)
    }
    assert largest_difference(train_again(experiment, deployed), final_model(deployed)) <= 1e-12
    work = [line["cost"]["samples"] for line in history(deployed)]
    sizes = [found.samples for _, found in sorted(read_joined(deployed / FILE).items())]
    assert work == [2 * sum(sizes[: 2 if r < first else 3]) for r in range(1, LATE_ROUNDS + 1)]  # two epochs


@pytest.mark.parametrize(
    ("options", "second"),
    [
        (["--min-clients", "2"], {2: NO_ANSWER}),
        (["--min-clients", "3"], {}),
        (["--min-clients", "3", "--skip"], dict.fromkeys(range(3), SKIPPED)),
    ],
    ids=["go on", "wait", "skip"],
)
def test_an_answer_after_the_deadline_is_not_used_and_the_next_one_is(
    options: list[str], second: dict[int, str], tmp_path: Path
) -> None:
    experiment, deployed = write_experiment(tmp_path, "scaffold", rounds=4), tmp_path / "run"
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "run", "--deadline", str(DEADLINE), *options)
        wait_until(lambda: "listening" in processes.log("serve"), "the server")
        clients = [processes.join(client) for client in (0, 1)]
        clients.append(processes.join(2, program=partial(answer_late, 2, DEADLINE + 1)))
        assert ended(server, *clients) == [0, 0, 0, 0]
        late = "client 2 sent 1 more or late replies" in processes.log("serve")
    found = rejections(deployed)
    assert found[2] == second
    assert late == bool(second)
    assert not found[3] or not found[4]
    assert largest_difference(train_again(experiment, deployed), final_model(deployed)) <= 1e-12


def test_bad_and_replayed_uploads_are_left_out_and_the_training_continues(tmp_path: Path) -> None:
    experiment, deployed = write_experiment(tmp_path, "scaffold", rounds=ATTACKED), tmp_path / "run"
    with Processes(tmp_path) as processes:
        server = processes.serve(str(experiment), "--out", "run", "--norm-limit", "5")
        wait_until(lambda: "listening" in processes.log("serve"), "the server")
        clients = [processes.join(client) for client in (0, 1)]
        clients.append(processes.join(2, program=send_bad_uploads))
        assert ended(server, *clients) == [0, 0, 0, 0]
        unused = re.findall(r"client 2 sent (\d+) more or late replies", processes.log("serve"))
    found = rejections(deployed)
    reasons = {round: reason for round, (_, reason) in BAD_UPLOADS.items()} | {
        REPLAY: "not the upload of this round"
    }
    for round in range(1, ATTACKED + 1):
        assert found[round].keys() == ({2} if round in reasons else set()), round
        assert reasons.get(round, "") in found[round].get(2, ""), round
    assert sum(map(int, unused)) == 2  # a second answer, and one to the message of the round before
    assert largest_difference(train_again(experiment, deployed), final_model(deployed)) <= 1e-12
