"""A private federation: the server clips, its draws are secret, and every round is released once."""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from tests.engines.flower.loopback import (
    Loopback,
    Tamper,
    Tampering,
    document_of,
    roster_of_all,
    server_engine,
    task_of,
)

from kedge.config.assemble import assemble
from kedge.config.experiment import resolve
from kedge.config.task import Task
from kedge.core.errors import CheckpointError, RequestError
from kedge.core.server import Server
from kedge.core.tree import Leaves
from kedge.engines.engine import Order
from kedge.engines.flower.events import Events
from kedge.engines.flower.member_exchange import SKIPPED
from kedge.engines.flower.messages import Content, Request
from kedge.engines.flower.roster import Joined
from kedge.engines.flower.server_engine import ServerEngine
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums
from kedge.privacy.accountant import Accountant
from kedge.privacy.noise import keyed_noise
from kedge.running import draws
from kedge.running.draws import RELEASED
from kedge.running.federation.joined_clients import sizes_only
from kedge.running.federation.private_events import private_events
from kedge.running.federation.serve import federated
from kedge.running.progress import Observer
from kedge.running.runner import run

CLIP, Z = 0.5, 1.5
EVERYBODY = range(5)
UNIFORM = "fedavg(weights='uniform')"
POISSON = {"rule": "poisson", "share": 0.5}
NOBODY = {"rule": "poisson", "share": 1e-12}
TRAINING = {"epochs": 2, "batch": 16, "on_divergence": "drop"}


def private_task(method: str = UNIFORM, rounds: int = 3, **settings: Any) -> Task:
    values = {"privacy": {"clip": CLIP, "noise": Z}, "training": TRAINING, **settings}
    return federated(task_of(method, rounds, **values))


def serve_private(task: Task, exchange: Loopback, folder: Path | None = None) -> tuple[Server, list[Any]]:
    """The server's state and the history after all rounds."""
    progress = run(task, server_engine(task, exchange), folder, 1)
    return progress.server, progress.history


def largest_difference(left: Leaves, right: Leaves) -> float:
    return max(float((left[k] - right[k]).abs().max()) for k in left)


@pytest.mark.parametrize(
    "method",
    [UNIFORM, "feddyn(alpha=0.1)", "fedbug(ratio=0.4)+feddyn(alpha=0.1)", "fedper(weights='uniform')",
     f"{UNIFORM}->fix-last+{UNIFORM}@2"],
)  # fmt: skip
def test_without_noise_and_with_a_large_clip_it_is_the_run_without_privacy(
    method: str, tmp_path: Path
) -> None:
    task = private_task(method, 4, privacy={"clip": 1e6, "noise": 0.0})
    server, _ = serve_private(task, Loopback(task, tmp_path))
    plain = task_of(method, 4)
    alone = run(plain, Sequential(plain.model, plain.federation)).server
    assert largest_difference(alone.shared, server.shared) <= 1e-12


def noise_of_one_round(task: Task, exchange: Loopback) -> Tensor:
    """The noise of a round without uploads, as standard normal numbers."""
    server, _ = serve_private(task, exchange)
    initial = task.model.init(task.seed)[0]
    expected = task.participation.expected(5)
    moved = torch.cat([(v - initial[k]).flatten() for k, v in sorted(server.shared.items())])
    return moved * expected / (Z * CLIP)


def test_the_noise_has_its_standard_deviation_and_follows_from_no_key(tmp_path: Path) -> None:
    task = private_task(rounds=1, participation=NOBODY)
    first, second = (noise_of_one_round(task, Loopback(task, tmp_path)) for _ in range(2))
    count = len(first)
    for noise in (first, second):
        assert abs(float(noise.mean())) < 5 / math.sqrt(count)
        assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * count)
    keyed = keyed_noise(task.seed, 0)(dict(sorted(task.model.init(0)[0].items())), 0)
    for other in (second, torch.cat([v.flatten() for v in keyed.values()])):
        assert abs(float((first * other).mean())) < 5 / math.sqrt(count)


class Skipping(Loopback):
    """An exchange whose rounds are skipped."""

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        return dict.fromkeys(clients, SKIPPED)


def test_a_round_that_is_skipped_still_releases_noise(tmp_path: Path) -> None:
    task = private_task(rounds=1)
    noise = noise_of_one_round(task, Skipping(task, tmp_path))
    assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * len(noise))


class Rejected(Loopback):
    """An exchange in which no upload is usable."""

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        return {c: f"client {c} is lost" for c in super().__call__(clients, request)}


def scaled(factor: float) -> Tamper:
    return lambda reply: reply._replace(
        tensors={k: v * factor if k.startswith("delta/") else v for k, v in reply.tensors.items()}
    )


def with_facts(**facts: Any) -> Tamper:
    return lambda reply: reply._replace(facts={**reply.facts, **facts})


def with_bit(reply: Content) -> Content:
    return reply._replace(tensors={**reply.tensors, "slots/privacy/below": torch.tensor(3.0).double()})


def one_round(tamper: Tamper, folder: Path, **privacy: Any) -> Leaves:
    """The model after a round in which client 0 cheats; the clip is smaller than each update."""
    values = {"clip": 1e-3, "noise": 0.0, **privacy}
    task = private_task(rounds=1, privacy=values, participation={"per_round": 5})
    exchange = Tampering(task, folder)
    exchange.tamper = tamper
    return serve_private(task, exchange)[0].shared


def test_the_server_clips_an_update_that_a_client_has_not_clipped(tmp_path: Path) -> None:
    honest = one_round(lambda reply: reply, tmp_path / "honest")
    for number, tamper in enumerate((scaled(1e6), with_facts(**{"weight.": 1e6}))):
        assert largest_difference(honest, one_round(tamper, tmp_path / str(number))) <= 1e-15


def test_an_upload_that_cannot_be_used_counts_as_zero_and_the_denominator_stays(tmp_path: Path) -> None:
    initial = private_task().model.init(0)[0]
    missing = one_round(lambda reply: "no answer by the deadline", tmp_path / "missing", adaptive=True)
    honest = one_round(lambda reply: reply, tmp_path / "honest", adaptive=True)
    for name, tamper in {"NaN": scaled(math.nan), "bit": with_bit, "round": with_facts(round=7)}.items():
        found = one_round(tamper, tmp_path / name, adaptive=True)
        assert largest_difference(missing, found) == 0, name
    late = private_task(
        rounds=1, privacy={"clip": 1e-3, "noise": 0.0, "adaptive": True}, participation={"per_round": 5}
    )
    engine = server_engine(late, Loopback(late, tmp_path / "late"))
    engine.population.roster.joined[0] = Joined(0, first_round=2)
    assert largest_difference(missing, run(late, engine).server.shared) == 0
    moved = {k: missing[k] - v for k, v in initial.items()}
    norm = math.sqrt(sum(float(v.square().sum()) for v in moved.values()))
    assert 0 < norm <= 4 / 5 * 1e-3 * (1 + 1e-9)  # four clipped updates over five
    assert largest_difference(missing, honest) > 1e-6


class Recording(Loopback):
    """An exchange that records the messages of each client."""

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task, folder)
        self.orders: list[Request] = []
        self.replies: list[Content] = []

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        def recorded(client: int, new: bool) -> Request:
            self.orders.append(request(client, new))
            return self.orders[-1]

        replies = super().__call__(clients, recorded)
        self.replies += [reply for reply in replies.values() if isinstance(reply, Content)]
        return replies


def test_history_orders_and_uploads_contain_nothing_of_the_clients_but_clipped_updates(
    tmp_path: Path,
) -> None:
    task = private_task(participation={"rule": "poisson", "share": 1.0})
    exchange = Recording(task, tmp_path)
    _, lines = serve_private(task, exchange)
    accountant = Accountant(task.privacy, 1.0)
    for line in lines:
        assert not {"clients", "rejected", "time", "cost", "train.loss"} & line.keys()
        assert line["privacy.noise_source"] == "system"
        assert line["privacy.epsilon"] == accountant.epsilon(line["round"])
    order_facts = {"client", "round", "stage", "stage_round", "seed", "memory", "clients", "frozen"}
    assert {frozenset(order.facts) for order in exchange.orders} == {frozenset(order_facts)}
    upload_facts = {"lost", "stored", "round", "rejected"}
    assert {frozenset(reply.facts) for reply in exchange.replies} == {frozenset(upload_facts)}
    for reply in exchange.replies:
        norm = math.sqrt(sum(float(v.square().sum()) for v in reply.tensors.values()))
        assert norm <= CLIP * (1 + 1e-12)


@pytest.mark.parametrize("rejected", [False, True])
def test_the_rounds_of_a_private_run_have_no_events_and_no_metrics(rejected: bool, tmp_path: Path) -> None:
    """Also if uploads are rejected, and with local tests that no client uses."""
    task = private_task(participation={"rule": "poisson", "share": 1.0}, evaluation={"local_test": 0.25})
    exchange = (Rejected if rejected else Loopback)(task, tmp_path, EVERYBODY)
    parts, said, events = server_engine(task, exchange), list[str](), list[str]()
    public = private_events(Events(lambda kind, facts: events.append(kind)))
    engine = ServerEngine(task.model, task.stages, parts.population, exchange, said.append, public)
    data = sizes_only(task.federation, roster_of_all(task))
    lines = run(replace(task, federation=data), engine).history
    assert not any(".local." in name for line in lines for name in line)
    assert not list(tmp_path.glob("*/metrics.jsonl"))
    assert not events
    assert [text.partition(": client")[0] for text in said] == [
        f"round {round}: the update of client {client} counts as zero"
        for round in (1, 2, 3)
        for client in EVERYBODY
        if rejected
    ]  # on the operator's terminal


def test_a_client_has_the_server_s_model_also_after_a_round_without_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of round 2 changes the last layer, which is frozen in round 3."""
    drawn = iter([[0], [], [0]])
    monkeypatch.setattr(draws, "secret_sample", lambda participation, population: next(drawn))
    task = private_task(f"{UNIFORM}->fix-last+{UNIFORM}@2", 3, participation=POISSON)
    exchange, compared = Loopback(task, tmp_path), list[int]()

    class Comparing(ServerEngine):
        def train(self, order: Order, clients: Sequence[int]) -> Sums:
            sums = super().train(order, clients)
            known = exchange.clients[0].known
            assert all(known[k].equal(v) for k, v in order.shared.items())
            compared.append(order.round)
            return sums

    run(task, Comparing(task.model, task.stages, server_engine(task, exchange).population, exchange, print))
    assert compared == [0, 2]


class Killed(Exception):
    """The server is killed."""


def test_a_round_that_was_released_before_the_server_was_killed_is_not_drawn_again(tmp_path: Path) -> None:
    task, folder = private_task(rounds=4, participation=POISSON), tmp_path / "run"
    folder.mkdir()
    shown: list[dict[str, Any]] = []

    def die(line: dict[str, Any]) -> None:
        shown.append(line)
        if line["round"] == 2:
            raise Killed

    exchange = Loopback(task, tmp_path / "clients")
    with pytest.raises(Killed):
        run(task, server_engine(task, exchange), folder, 1, observer=Observer(line=die))
    _, lines = serve_private(task, exchange, folder)
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert lines[1] == shown[1]  # with the accuracy of the model that was shown before the checkpoint
    assert lines[-1]["privacy.epsilon"] == Accountant(task.privacy, 0.5).epsilon(4)


def test_a_round_that_was_not_released_starts_again_with_new_draws(tmp_path: Path) -> None:
    task, folder = private_task("feddyn(alpha=0.1)", 3, participation={"per_round": 3}), tmp_path / "run"
    folder.mkdir()

    class DiesInRoundTwo(Loopback):
        def __call__(
            self, clients: Sequence[int], request: Callable[[int, bool], Request]
        ) -> Mapping[int, Content | str]:
            replies = super().__call__(clients, request)
            if request(0, False).facts["round"] == 1:
                raise Killed
            return replies

    dying = DiesInRoundTwo(task, tmp_path / "clients")
    with pytest.raises(Killed):
        serve_private(task, dying, folder)
    first = json.loads((folder / "history.jsonl").read_text().splitlines()[0])
    exchange = Loopback(task, tmp_path / "clients")  # the clients have trained round 2 already
    _, lines = serve_private(task, exchange, folder)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[0] == first
    assert lines[-1]["privacy.epsilon"] == Accountant(task.privacy, 1.0).epsilon(3)


def test_no_second_noise_is_drawn_for_a_round_whose_checkpoint_is_lost(tmp_path: Path) -> None:
    task, folder, saved = private_task(rounds=3), tmp_path / "run", tmp_path / "saved"
    folder.mkdir()

    def keep_copy(line: dict[str, Any]) -> None:
        shutil.copytree(folder / "checkpoint", saved / str(line["round"] - 1))

    exchange = Loopback(task, tmp_path / "clients")
    (folder / "checkpoint").mkdir()
    run(task, server_engine(task, exchange), folder, 1, observer=Observer(line=keep_copy))
    released, model = (folder / RELEASED).read_bytes(), (folder / "model.safetensors").read_bytes()

    def resume_after(round: int) -> None:
        shutil.rmtree(folder / "checkpoint")
        shutil.copytree(saved / str(round), folder / "checkpoint")
        (folder / "model.safetensors").unlink(missing_ok=True)
        serve_private(task, exchange, folder)

    resume_after(2)
    assert (folder / RELEASED).read_bytes() == released
    assert (folder / "model.safetensors").read_bytes() == model
    with pytest.raises(CheckpointError, match="kedge does not draw noise twice for a round"):
        resume_after(1)


def test_a_site_checks_that_its_uploads_are_covered(tmp_path: Path) -> None:
    privacy = {"clip": CLIP, "noise": Z}
    document = document_of(UNIFORM, privacy=privacy, training=TRAINING)  # three of five clients a round
    data = assemble(resolve(document)).federation
    own = replace(data, clients=data.clients[:1], local_tests=data.local_tests[:1])
    assert assemble(resolve(document), federation=own).privacy.active
    with pytest.raises(RequestError, match="besides the delta its clients send"):
        assemble(resolve({**document, "method": "scaffold"}), federation=own)
