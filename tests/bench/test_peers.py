"""Other frameworks: they do the same work as kedge, round by round, and their failures have a note."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.command import kedge
from torch import nn

from kedge.bench import timing
from kedge.bench.loops import plain_loop
from kedge.bench.peers import flower as peers_flower
from kedge.bench.peers.flower import PeerFailed, flower
from kedge.bench.peers.flower_app import configure_on_request, require_all_replies
from kedge.bench.peers.peers import CENTRAL, FLOWER, PFL, PLAIN, Way, peer_speeds, time_in_turns
from kedge.bench.peers.pfl import pfl_research
from kedge.bench.rounds import Round, rounds_of
from kedge.bench.timing import Timing
from kedge.bench.workloads import OVERHEAD, PEERS, PFL_CIFAR10, Workload, standard
from kedge.core.errors import RequestError
from kedge.core.server import Server
from kedge.core.tree import Leaves
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential

# The clip and the weight decay change the result; a client has two batches, of 10 and 8 samples.
SMALL = replace(OVERHEAD, name="small", clients=4, per_round=4, clip=0.5, weight_decay=0.1, compiled=False)
COMMAND = import_module("kedge.cli.actions.bench")
Rounds = Callable[[Workload, Federation, pytest.MonkeyPatch], Leaves]
ROUNDS = 2


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.01)


def alike(work: Workload) -> Federation:
    """Every client has copies of one sample, so that the order of batches makes no difference."""
    data = work.federation("cpu")
    x, y = data.pool.x.clone(), data.pool.y.clone()
    for own in data.clients:
        x[own], y[own] = data.pool.x[own[0]], data.pool.y[own[0]]
    return replace(data, pool=Dataset(x, y))


def unequal(work: Workload) -> Federation:
    """Clients of 4, 6, 8 and 10 samples: one full batch each."""
    data = work.federation("cpu")
    sizes = (4, 6, 8, 10)
    return replace(data, clients=tuple(own[:size] for own, size in zip(data.clients, sizes, strict=True)))


def made_modules(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The networks that a workload makes from now on."""
    made: list[nn.Module] = []
    make = Workload.module

    def module(self: Workload) -> nn.Module:
        made.append(make(self))
        return made[-1]

    monkeypatch.setattr(Workload, "module", module)
    return made


def train(rounds: Round) -> None:
    for number in range(ROUNDS):
        rounds(number)


def by_kedge(work: Workload, data: Federation) -> Leaves:
    task = replace(work.task("cpu"), federation=data)
    models: list[Leaves] = []

    def record_model(server: Server, engine: Engine) -> None:
        models.append(server.shared)

    train(rounds_of(task, Sequential(task.model, data), record_model))
    return models[-1]


def by_the_plain_loop(work: Workload, data: Federation, monkeypatch: pytest.MonkeyPatch) -> Leaves:
    made = made_modules(monkeypatch)
    train(plain_loop(work, data))
    return made[0].state_dict()


def by_pfl(work: Workload, data: Federation, monkeypatch: pytest.MonkeyPatch) -> Leaves:
    pytest.importorskip("pfl")
    made = made_modules(monkeypatch)
    with pfl_research(work, data) as rounds:
        train(rounds)
    return made[0].state_dict()


def by_flower(work: Workload, data: Federation, monkeypatch: pytest.MonkeyPatch) -> Leaves:
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    with flower(work, data) as simulation:
        train(simulation.round)
        return simulation.model()


@pytest.mark.parametrize(
    ("rounds", "deal"),
    [
        (by_the_plain_loop, alike),
        (by_pfl, alike),
        (by_pfl, unequal),
        pytest.param(by_flower, alike, marks=pytest.mark.slow),
        pytest.param(by_flower, unequal, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.__name__,
)
def test_everyone_averages_the_same_model(
    rounds: Rounds, deal: Callable[[Workload], Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of all clients from the same weights; weight decay and clip change the result."""
    data = deal(SMALL)
    ours = by_kedge(SMALL, data)
    start = SMALL.module().state_dict()
    theirs = rounds(SMALL, data, monkeypatch)
    assert set(ours) == set(theirs) == set(start)
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-5, atol=1e-6)
    assert max(float((value - start[name]).abs().max()) for name, value in ours.items()) > 5e-3


def test_the_workloads_are_those_that_are_named() -> None:
    assert list(PEERS) == ["overhead", "compute", "standard", "pfl-cifar10"]
    own = PFL_CIFAR10
    assert (own.clients, own.per_round, own.samples, own.batch) == (1000, 50, 50, 10)
    assert sum(p.numel() for p in own.module().parameters()) == 1_626_442
    assert "1,626,442 parameters" in own.about
    assert own.local().clip is None
    assert (standard().samples, standard(2).samples) == (500, 100)
    assert "100 samples" in standard(2).about
    with pytest.raises(RequestError, match="--steps 0"):
        standard(0)


@pytest.mark.slow
def test_a_peer_that_is_not_installed_has_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Way, "missing", lambda self: bool(self.needs))
    rows = {row.how: row for row in peer_speeds(SMALL, Timing(repeats=2, compiled=False))}
    assert [name for name in rows if not name.startswith("kedge, ")] == [PLAIN, CENTRAL, PFL, FLOWER]
    assert rows[PFL].note == "not installed: pip install pfl"
    assert rows[FLOWER].note == "not installed: pip install 'flwr[simulation]'"
    for name in (PFL, FLOWER):
        assert rows[name].samples_per_second is rows[name].warmup_seconds is None
        assert set(rows[name].ratios.values()) == {None}
        assert rows[PLAIN].ratios[name] is None
    assert rows[PLAIN].ratios[PLAIN] == rows[CENTRAL].ratios[CENTRAL] == 1
    ours = next(row for name, row in rows.items() if name.startswith("kedge, "))
    assert ours.samples_per_second is not None
    assert ours.samples_per_second > 0


def test_a_package_is_looked_for_where_python_finds_modules(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way("x", None, lambda: nullcontext(lambda number: 1), ("beside_the_benchmark",))
    assert way.missing()
    (tmp_path / "beside_the_benchmark.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not way.missing()
    assert way.versions() == "beside_the_benchmark from source"


def test_a_peer_that_fails_is_told_and_the_others_go_on() -> None:
    """One peer cannot be imported, one fails in its warm-up, and one after it."""

    def working(number: int) -> int:
        return 10

    @contextmanager
    def broken() -> Iterator[Round]:
        raise ImportError("No module named 'dp_accounting'")
        yield working

    def early(number: int) -> int:
        raise PeerFailed("no client replied")

    def late(number: int) -> int:
        if number > 1:
            raise PeerFailed("the simulation is no more")
        return 10

    made = [
        Way(PLAIN, None, lambda: nullcontext(working)),
        Way("broken", None, broken),
        Way("early", None, lambda: nullcontext(early)),
        Way(CENTRAL, "fp32", lambda: nullcontext(working)),
        Way(PFL, None, lambda: nullcontext(late)),
        Way(FLOWER, None, lambda: nullcontext(working)),
    ]
    rows = {row.how: row for row in time_in_turns(SMALL, made, Timing(repeats=2))}
    assert rows["broken"].note == "did not run: No module named 'dp_accounting'"
    assert rows["early"].note == "did not run: no client replied"
    assert rows[PFL].note == "stopped in turn 1: the simulation is no more"
    for name in ("broken", "early", PFL):
        assert rows[name].samples_per_second is None
    assert rows[FLOWER].samples_per_second is not None
    assert rows[FLOWER].ratios[PLAIN] is not None


def test_ratios_are_taken_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds of 1 and 2, then 10 and 40, then 100 and 300: ratios of 2, 4 and 3, whose median is 3."""
    speeds = iter([1.0, 2.0, 10.0, 40.0, 100.0, 300.0])
    monkeypatch.setattr("kedge.bench.peers.peers.block_speed", lambda round, device: next(speeds))
    plain = Way(PLAIN, None, lambda: nullcontext(lambda number: 1))
    none = plain._replace(how=PFL, needs=("no_such_package",))
    made = [plain, plain._replace(how=CENTRAL), none, none._replace(how=FLOWER)]
    rows = time_in_turns(SMALL, made, Timing(repeats=3))
    assert [row.ratios[PLAIN] for row in rows] == [1, 3, None, None]
    assert [row.samples_per_second for row in rows] == [10, 40, None, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("pass", "ended without a word"),
        ("print('ready')", "ended without a word"),
        ("import time; print('ready', flush=True); time.sleep(3)", "no answer for 1 s"),
        ("print('ready', flush=True); input(); print('failed out of memory')", "failed out of memory"),
    ],
)
def test_a_simulation_that_ends_says_why(program: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_flower, "PROGRAM", program)
    monkeypatch.setattr(peers_flower, "ANSWER_SECONDS", 1.0)
    with pytest.raises(PeerFailed, match=said), flower(SMALL, SMALL.federation("cpu")) as simulation:
        simulation.round(0)


def test_flower_s_rounds_wait_until_they_are_asked_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"w": SimpleNamespace(numpy=lambda: np.arange(3.0))}
    configured = configure_on_request(lambda *arguments: arguments[0], tmp_path, answers := io.StringIO())
    monkeypatch.setattr("sys.stdin", io.StringIO("model\nround\nround\n"))
    assert configured(1, arrays, None, None) == 1
    assert answers.getvalue().split() == ["ready", "saved"]
    assert np.load(tmp_path / "model.npz")["w"].tolist() == [0, 1, 2]
    assert configured(2, arrays, None, None) == 2
    with pytest.raises(SystemExit):
        configured(3, arrays, None, None)


def test_flower_s_rounds_need_every_client() -> None:
    right = SimpleNamespace(has_error=lambda: False)
    wrong = SimpleNamespace(has_error=lambda: True, error=SimpleNamespace(reason="out of\n memory"))
    aggregated = require_all_replies(lambda number, replies: len(replies), 2, answers := io.StringIO())
    assert aggregated(1, iter([right, right])) == 2
    for replies in ([right], [right, wrong]):
        with pytest.raises(SystemExit):
            aggregated(1, replies)
    assert answers.getvalue().splitlines() == ["failed 1 of 2 clients replied", "failed out of memory"]


@pytest.mark.slow
def test_the_command_prints_the_table_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Way, "missing", lambda self: bool(self.needs))
    monkeypatch.setitem(PEERS, "overhead", SMALL)
    words = ("bench", "overhead", "--peers", "--no-compile", "--repeats", "1")
    answer = kedge(*words, "--json")
    assert answer.code == 0, answer
    assert answer.json()["rows"] == []
    first, *_, last = answer.json()["peers"]
    assert first["how"] == PLAIN
    assert first["ratios"] == {PLAIN: 1, CENTRAL: first["ratios"][CENTRAL], PFL: None, FLOWER: None}
    assert last["note"] == "not installed: pip install 'flwr[simulation]'"
    table = kedge(*words).out
    assert "to pfl-research" in table
    assert "is not timed" in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pfl-cifar", "--peers"), "Did you mean 'pfl-cifar10'"),
        (("networks", "--peers"), "Allowed: overhead, compute, standard, pfl-cifar10"),
        (("standard", "--peers", "--steps", "-1"), "--steps -1: need at least 1"),
        (("pfl-cifar10",), "no such workload"),
    ],
)
def test_wrong_requests(words: tuple[str, ...], said: str) -> None:
    answer = kedge("bench", *words)
    assert answer.code == 2
    assert said in answer.err
