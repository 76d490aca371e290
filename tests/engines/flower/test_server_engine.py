"""The server's engine with clients behind messages trains what the sequential engine trains, bit for bit."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from tests.engines.flower.loopback import Loopback, Tampering, server_engine, task_of
from tests.quick import every

from kedge.config.task import Task
from kedge.core.tree import Tree, flatten
from kedge.engines.engine import Engine
from kedge.engines.flower.messages import Content, Request
from kedge.engines.sequential import Sequential
from kedge.running.federation.serve import federated
from kedge.running.progress import Observer, Progress
from kedge.running.runner import run

METHODS = (
    "fedavg", "fedprox(mu=0.1)", "feddyn(alpha=0.1)", "feddyn(alpha=0.1, scaling='data')",
    "feddc(alpha=0.1)", "feddecorr(beta=0.1)", "fedntd(beta=0.7)", "moon(mu=0.7)",
    "fedtr", "fedtr(drift='accumulate')",
    "scaffold", "fedpvr", "fedavgm(beta=0.5)", "fedadam", "fedexp", "fednova", "fedper", "lg-fedavg",
    "fedrep", "fedrod", "fedbabu", "fedbug(ratio=0.4)+feddyn(alpha=0.1)", "fedbug(ratio=0.4)+scaffold",
    "top-down(ratio=0.8)+fedavg", "vanilla(thaw=[2])+fedbabu", "anti(thaw=[2])+fedavg",
    "fedbug(ratio=0.4)+feddyn(alpha=0.1)->fedavg@2", "fedrod->fedavg@2", "fedavg->fedrod@2",
    "scaffold->feddyn(alpha=0.1)@2", "fedper->fedavg@2",
    "fedavg->fix-last+fedavg@2", "fedrod->scaffold@2",
)  # fmt: skip


def train(task: Task, engine: Engine) -> tuple[Progress, list[dict[str, Any]]]:
    """The progress and the history of a run; evaluation of clients' own models is left out."""
    lines: list[dict[str, Any]] = []
    return run(task, engine, observer=Observer(line=lines.append)), lines


def assert_same_bits(left: Tree, right: Tree) -> None:
    first, second = flatten(left), flatten(right)
    assert first.keys() == second.keys()
    for path, v in first.items():
        assert v.equal(second[path]), f"{path}: {(v - second[path]).abs().max()}"


@pytest.mark.parametrize("method", every(4, METHODS))
def test_a_federation_trains_the_same_bits_as_one_machine(method: str, tmp_path: Path) -> None:
    task = task_of(method)
    exchange = Loopback(task, tmp_path)
    alone, lines = train(task, Sequential(task.model, task.federation))
    apart, remote_lines = train(task, server_engine(task, exchange))
    assert_same_bits(alone.server._asdict(), apart.server._asdict())
    assert [line["train.loss"] for line in lines] == [line["train.loss"] for line in remote_lines]


@pytest.mark.parametrize("method", every(4, METHODS))
def test_the_arrays_have_the_bytes_that_kedge_cost_counts(method: str, tmp_path: Path) -> None:
    task = task_of(method)
    exchange = Loopback(task, tmp_path)
    sent: list[tuple[int, int]] = []
    observer = Observer(line=lambda line: sent.append((exchange.down, exchange.up)))
    lines = run(task, server_engine(task, exchange), observer=observer).history
    counted = [(line["cost"]["bytes_down"], line["cost"]["bytes_up"]) for line in lines]
    assert sent == counted


@pytest.mark.parametrize("statistics", ["shared", "local", "frozen"])
def test_batch_norm_statistics_are_sent_as_the_run_says(statistics: str, tmp_path: Path) -> None:
    training = {"epochs": 1, "batch": 16, "statistics": statistics}
    model, data = {"name": "small-cnn", "norm": "batch"}, {"name": "digits"}
    task = task_of("fedbug(ratio=0.4)+scaffold", 2, training=training, model=model, data=data)
    exchange = Loopback(task, tmp_path)
    alone, _ = train(task, Sequential(task.model, task.federation))
    apart, _ = train(task, server_engine(task, exchange))
    assert alone.server.buffers
    assert_same_bits(alone.server._asdict(), apart.server._asdict())
    cost = apart.history[-1]["cost"]
    assert (exchange.down, exchange.up) == (cost["bytes_down"], cost["bytes_up"])


@pytest.mark.parametrize(
    "method", ["scaffold->feddyn(alpha=0.1)@3", "fedavg->fix-last+fedavg@2", "fedrod->fedavg@3"]
)
def test_a_client_that_restarts_continues_with_the_memory_on_its_disk(method: str, tmp_path: Path) -> None:
    task = task_of(method, 5)
    alone, _ = train(task, Sequential(task.model, task.federation))
    exchange = Loopback(task, tmp_path)
    engine = server_engine(task, exchange)
    apart = run(task, engine, observer=Observer(line=lambda line: exchange.clients.clear()))
    assert_same_bits(alone.server._asdict(), apart.server._asdict())


def test_the_server_reports_a_client_that_has_lost_its_memory(tmp_path: Path) -> None:
    task = task_of("scaffold", 3, participation={"per_round": 5})
    exchange, messages = Loopback(task, tmp_path), list[str]()

    def lose(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            exchange.clients.pop(2)
            shutil.rmtree(tmp_path / "2")

    run(task, server_engine(task, exchange, messages.append), observer=Observer(line=lose))
    assert messages == ["client 2 has lost its memory of round 1: it starts with a new one."]


def test_a_server_that_is_restarted_names_the_memory_before_the_repeated_round(tmp_path: Path) -> None:
    task = task_of("scaffold", 4)
    alone, _ = train(task, Sequential(task.model, task.federation))
    exchange = Loopback(task, tmp_path / "clients")
    folder = tmp_path / "run"
    folder.mkdir()

    class Killed(Exception):
        pass

    class DiesInRoundThree(Loopback):
        def __call__(
            self, clients: Sequence[int], request: Callable[[int, bool], Request]
        ) -> Mapping[int, Content | str]:
            replies = super().__call__(clients, request)
            if next(iter(replies.values())).facts["round"] == 2:  # type: ignore[union-attr]
                raise Killed
            return replies

    dying = DiesInRoundThree(task, tmp_path / "clients")
    with pytest.raises(Killed):
        run(task, server_engine(task, dying), folder, 1)
    exchange.clients = dying.clients  # the clients' processes live, and have trained round 3 already
    for client in exchange.clients.values():
        client.forget()
    resumed = run(task, server_engine(task, exchange), folder, 1)
    assert_same_bits(alone.server._asdict(), resumed.server._asdict())


def with_tensors(reply: Content, change: Callable[[Tensor], Tensor], path: str = "delta/1.weight") -> Content:
    return reply._replace(tensors={**reply.tensors, path: change(reply.tensors[path])})


BAD_REPLIES: dict[str, tuple[Callable[[Content], Content | str], str]] = {
    "NaN": (lambda r: with_tensors(r, lambda v: v * float("nan")), "not finite"),
    "infinity": (lambda r: with_tensors(r, lambda v: v + float("inf")), "not finite"),
    "a wrong shape": (lambda r: with_tensors(r, lambda v: v[:1]), "delta/1.weight is torch.float64 [1, 6]"),
    "a wrong dtype": (lambda r: with_tensors(r, lambda v: v.float()), "delta/1.weight is torch.float32"),
    "a wrong name": (
        lambda r: r._replace(tensors={**r.tensors, "delta/x": torch.ones(1)}), "delta/x is not expected"
    ),
    "a missing tensor": (lambda r: r._replace(tensors={}), "is missing"),
    "a huge update": (lambda r: with_tensors(r, lambda v: v * 1e6), "times the median"),
    "an earlier round": (lambda r: r._replace(facts={**r.facts, "round": 7}), "not the upload of this round"),
    "a negative weight": (lambda r: r._replace(facts={**r.facts, "weight.": -1.0}), "its weight is -1.0"),
    "a large weight": (lambda r: r._replace(facts={**r.facts, "weight.": 1e9}), "its weight is 1000000000.0"),
    "a weight that is no number": (lambda r: r._replace(facts={**r.facts, "weight.": "1"}), "not a finite"),
    "no answer": (lambda r: "no answer by the deadline", "no answer by the deadline"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_bad_reply_is_left_out_and_recorded_and_the_round_continues(name: str, tmp_path: Path) -> None:
    tamper, reason = BAD_REPLIES[name]
    task = federated(task_of("scaffold", 2, participation={"per_round": 5}))
    exchange = Tampering(task, tmp_path)
    exchange.tamper = tamper
    engine = server_engine(task, exchange)
    progress, lines = train(task, engine)
    for line in lines:
        (rejection,) = line["rejected"]
        assert rejection["client"] == 0
        assert reason in rejection["reason"]
    assert sorted(engine.versions) == [1, 2, 3, 4]
    assert all(bool(v.isfinite().all()) for v in progress.server.shared.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_precisions_have_the_same_bits_too(precision: str, tmp_path: Path) -> None:
    engine = {"name": "sequential", "precision": precision, "device": "cpu"}
    task = task_of("fedbug(ratio=0.4)+scaffold", 2, engine=engine)
    alone, _ = train(task, Sequential(task.model, task.federation))
    apart, _ = train(task, server_engine(task, Loopback(task, tmp_path)))
    assert_same_bits(alone.server._asdict(), apart.server._asdict())
