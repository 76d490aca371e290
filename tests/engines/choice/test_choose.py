"""The automatic choice of an engine, and its messages."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kedge.algorithms import fedavg, fedbug
from kedge.bench.workloads import OVERHEAD, Workload
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.engines.choice import choose as auto
from kedge.engines.choice import trial
from kedge.engines.choice.choose import Choice, EngineOptions, build, choose, pads_batches
from kedge.engines.choice.trial import Work
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.nn.precision import in_precision

SMALL = replace(OVERHEAD, clients=6, per_round=4)


def chosen(
    work: Workload, rounds: int = 1, name: str = "auto", compile: str = "auto", said: list[str] | None = None
) -> Choice:
    task = work.task("cpu")
    said = [] if said is None else said
    stage = Stage(fedbug(fedavg()), rounds, work.local())
    own = Work(task.model, task.federation, stage, work.per_round, rounds)
    return choose(own, EngineOptions(name, compile), said.append)


def test_what_is_asked_for_is_taken() -> None:
    assert chosen(SMALL, name="sequential").name == "sequential"
    said: list[str] = []
    assert chosen(SMALL, name="stacked", compile="on", said=said).compiled
    assert "compiling 1 program(s): the first rounds take up to 20 s longer" in said
    assert not chosen(SMALL, name="stacked", compile="off").compiled
    assert chosen(SMALL, name="stacked", compile="off").chunk == 4


def test_the_faster_engine_of_the_trial_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(faster: type) -> object:
        return lambda engine, *rest: 1.0 if isinstance(engine, faster) else 2.0

    monkeypatch.setattr(trial, "timed", timed(Stacked))
    assert chosen(SMALL).name == "stacked"
    assert "2.0 times as fast as sequential" in chosen(SMALL).reason
    monkeypatch.setattr(trial, "timed", timed(Sequential))
    assert chosen(SMALL).name == "sequential"


def test_compiling_must_be_repaid_by_the_rounds_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "timed", lambda engine, *rest: 0.01 if isinstance(engine, Stacked) else 1.0)
    assert not chosen(SMALL, rounds=10).compiled
    assert chosen(SMALL, rounds=10**6).compiled


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(trial, "timed", lambda engine, *rest: 0.01 if isinstance(engine, Stacked) else 1.0)
    assert not chosen(SMALL, rounds=10**6).compiled
    with pytest.raises(RequestError, match="no C\\+\\+ compiler is found here"):
        chosen(SMALL, name="stacked", compile="on")


def test_one_client_a_round_is_not_stacked() -> None:
    assert chosen(replace(SMALL, per_round=1)).name == "sequential"


def test_a_choice_builds_its_engine() -> None:
    task = SMALL.task("cpu")
    assert isinstance(build(Choice("sequential", False, 0, ""), task.model, task.federation), Sequential)
    stacked = build(Choice("stacked", False, 3, ""), task.model, task.federation)
    assert isinstance(stacked, Stacked)
    assert stacked.chunk == 3


def test_the_trial_touches_neither_weights_nor_chance() -> None:
    task = SMALL.task("cpu")
    before = {k: v.clone() for k, v in task.model.init(0)[0].items()}
    state = torch.random.get_rng_state()
    chosen(SMALL)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in task.model.init(0)[0].items())


def test_bfloat16_is_not_compiled_by_a_torch_that_leaves_roundings_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SMALL.task("cpu")
    model = in_precision(task.model, "bf16")
    stage = Stage(fedavg(), 10**6, SMALL.local())

    def compiled(compile: str) -> bool:
        own = Work(model, task.federation, stage, SMALL.per_round, stage.rounds)
        return choose(own, EngineOptions("auto", compile)).compiled

    monkeypatch.setattr(trial, "timed", lambda engine, *rest: 0.01 if isinstance(engine, Stacked) else 1.0)
    monkeypatch.setattr(auto, "cpu_keeps_rounding", lambda: True)
    assert compiled("auto")
    monkeypatch.setattr(auto, "cpu_keeps_rounding", lambda: False)
    assert not compiled("auto")
    with pytest.raises(RequestError, match=r"torch .* compiles wrong bf16 gradients on a CPU"):
        compiled("on")


@pytest.mark.parametrize(
    ("sizes", "batch", "drop_last", "pads"),
    [
        ((8, 8), 4, False, False),
        ((8, 8), 50, False, False),
        ((8, 4), 4, False, False),
        ((8, 6), 4, False, True),
        ((8, 6), 4, True, False),
        ((8, 3), 4, True, True),
        ((8, 6), 50, False, True),
    ],
)
def test_a_stack_pads_batches_that_differ_in_size(
    sizes: tuple[int, ...], batch: int, drop_last: bool, pads: bool
) -> None:
    data = replace(SMALL.task("cpu").federation, clients=tuple(np.arange(size) for size in sizes))
    assert pads_batches(data, Stage(fedavg(), 1, LocalTraining(1, batch, drop_last=drop_last))) == pads
