"""The history's costs equal the multiply-adds and the bytes of the sequential engine."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS
from tests.contract.problem import IMAGE, SIZES, federation, network, perceptron
from tests.quick import cases
from torch.utils.flop_counter import FlopCounterMode

from kedge import measure
from kedge.algorithms import fedavg, fedbug, feddyn, scaffold
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.client import Carry, Fixed
from kedge.core.correction import ClassMeans, Correction
from kedge.core.model import Model, Statistics
from kedge.core.sampling import Participation
from kedge.core.schedules import Clock, Mask
from kedge.core.server import Reply
from kedge.core.tree import Tree, flatten
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.engines.sums import Sums
from kedge.running.recording.round_costs import MEASURES, CostCounter, RoundPosition, predicted_lines
from kedge.running.runner import run

LOCAL = LocalTraining(epochs=2, batch=4)  # clients of 1, 2, 5 and 9 samples: short batches, one to six steps
DOUBLE = 8  # bytes


class Watched(Sequential):
    """The sequential engine; it counts every client's multiply-adds, and records orders and replies."""

    def __init__(self, model: Model, data: Federation) -> None:
        super().__init__(model, data)
        self.macs: list[int] = []
        self.orders: list[Order] = []
        self.replies: list[Reply] = []

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        self.macs.append(0)
        self.orders.append(order)
        sums = super().train(order, clients)
        self.replies.append(sums.reply())
        return sums

    def train_client(
        self, stage: Stage, model: Model, order: Order, client: int, tuning: bool = False
    ) -> tuple[Carry, Plan, Fixed]:
        with FlopCounterMode(display=False) as counter:
            found = super().train_client(stage, model, order, client, tuning)
        self.macs[-1] += counter.get_total_flops() // 2
        return found

    def survey(self, carry: Carry, client: int) -> ClassMeans:
        with FlopCounterMode(display=False) as counter:
            found = super().survey(carry, client)
        self.macs[-1] += counter.get_total_flops() // 2
        return found


def ran(task: Task) -> tuple[list[dict[str, Any]], Watched]:
    engine = Watched(task.model, task.federation)
    return [line["cost"] for line in run(task, engine).history], engine


def task_of(algorithm: Algorithm, rounds: int = 3, local: LocalTraining = LOCAL, **others: Any) -> Task:
    model = others.pop("model", None) or network(of=algorithm)
    return Task((Stage(algorithm, rounds, local),), model, others.pop("data", federation()), **others)


def sent(tree: Tree) -> int:
    return sum(v.numel() * v.element_size() for v in flatten(tree).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_history_s_multiply_adds_are_those_of_the_sequential_kernel(name: str) -> None:
    """Every method, clients with short batches, two rounds; the counts are exactly equal."""
    for drop_last in (False, True):
        local = replace(LOCAL, drop_last=drop_last)
        costs, engine = ran(task_of(ALGORITHMS[name], 2, local))
        assert [cost["macs"] for cost in costs] == engine.macs
        samples = sum(n // min(n, 4) * min(n, 4) if drop_last else n for n in SIZES) * 2
        assert [cost["samples"] for cost in costs] == [samples] * 2


@pytest.mark.parametrize("name", cases(ALGORITHMS))
def test_what_is_told_before_a_run_is_what_its_history_has(name: str) -> None:
    task = task_of(ALGORITHMS[name], 4, participation=Participation("bernoulli", share=0.5), seed=3)
    history = run(task, Stacked(task.model, task.federation)).history
    for told, line in zip(predicted_lines(task), history, strict=True):
        assert told == {k: line[k] for k in told}
        assert set(told["cost"]) == {"parameters", "samples", "updates", "macs", "bytes_down", "bytes_up"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n, a in ALGORITHMS.items() if not any(isinstance(c, MEASURES) for c in a.corrections)]
)
def test_where_everything_trains_the_bytes_are_those_of_the_trees_that_are_sent(name: str) -> None:
    algorithm = ALGORITHMS[name]
    task = task_of(algorithm, 3, model=network("batch", of=algorithm))
    costs, engine = ran(task)
    for cost, order, reply in zip(costs, engine.orders, engine.replies, strict=True):
        down = len(SIZES) * sent({k: order._asdict()[k] for k in ("shared", "buffers", "broadcast")})
        up = len(SIZES) * sent(reply.mean)
        if reply.trained >= frozenset(order.shared):
            assert (cost["bytes_down"], cost["bytes_up"]) == (down, up)
        else:
            assert cost["bytes_down"] < down
            assert cost["bytes_up"] < up


WHOLE, BODY, HEAD, LEAVES, CENTROIDS = 147, 96, 51, 6, 3 * 16 + 3
EXCHANGED = {  # parameters down and up, of conv 20, conv 76 and linear 51
    "fedavg": (WHOLE, WHOLE),
    "feddyn": (WHOLE, WHOLE),
    "moon": (WHOLE, WHOLE),
    "scaffold": (2 * WHOLE, 2 * WHOLE),
    "feddc": (2 * WHOLE, 2 * WHOLE),
    "fedpvr": (WHOLE + HEAD, WHOLE + HEAD),
    "fedpvr(two)": (WHOLE + HEAD + 76, WHOLE + HEAD + 76),
    "fedexp": (WHOLE, WHOLE + 1),
    "fednova": (WHOLE, 2 * WHOLE + LEAVES),
    "fedtr": (WHOLE + CENTROIDS, WHOLE + CENTROIDS),
    "fedper": (BODY, BODY),
    "fedrep": (BODY, BODY),
    "fedbabu": (BODY, BODY),
    "lg-fedavg": (HEAD, HEAD),
    "fedrod": (WHOLE, WHOLE),
    "fix-last+fedavg": (BODY, BODY),
    "fedbug+scaffold": (2 * WHOLE, 2 * WHOLE),
    "fedavg, all": (WHOLE, WHOLE),
    "feddyn, spread": (WHOLE, WHOLE + 1),
}


@pytest.mark.parametrize("name", cases([name for name in EXCHANGED if name in ALGORITHMS]))
def test_a_method_exchanges_what_its_paper_says(name: str) -> None:
    costs, _ = ran(task_of(ALGORITHMS[name], 2))
    down, up = EXCHANGED[name]
    for cost in costs:
        assert cost["bytes_down"] == DOUBLE * len(SIZES) * down
        assert cost["bytes_up"] == DOUBLE * len(SIZES) * up


def test_every_correction_that_measures_is_left_out() -> None:
    """They are in kedge.measure and only measure."""
    modules = [import_module(f"kedge.measure.{found.name}") for found in iter_modules(measure.__path__)]
    own = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Correction) and kind.__module__ == module.__name__
    }
    assert own == set(MEASURES)


def test_parameters_updated_are_counted_step_by_step() -> None:
    """FedBug with ratio 1: in step k of K the first ⌈3k/K⌉ of the units 20, 76, 51."""
    costs, _ = ran(task_of(fedbug(fedavg(), 1.0), 1))
    steps = [2, 2, 4, 6]
    opened = [[20, 96, 147][-(-3 * k // K) - 1] for K in steps for k in range(1, K + 1)]
    assert costs[0]["updates"] == sum(opened)
    assert costs[0]["parameters"] == 147


@pytest.mark.parametrize(
    ("statistics", "down", "up"),
    [("shared", [1, 1, 1], 1), ("local", [1, 0.5, 0], 1), ("frozen", [0, 0, 0], 0)],
)
def test_statistics_travel_as_they_are_used(statistics: Statistics, down: list[float], up: int) -> None:
    """Twelve numbers; local statistics are sent only to clients in their first round."""
    cohorts = ([0, 1], [1, 2], [0, 2])
    task = task_of(fedavg(), model=network("batch", statistics))
    ledger, trained = CostCounter(task), WHOLE + 12
    for round, (clients, share) in enumerate(zip(cohorts, down, strict=True)):
        cost = ledger.count_round(RoundPosition(0, round, round), clients)
        assert cost.bytes_down == DOUBLE * 2 * (trained + share * 12)
        assert cost.bytes_up == DOUBLE * 2 * (trained + up * 12)


def blinking(clock: Clock, units: int) -> Mask:
    """The head trains in the first two rounds, the body in the others."""
    return tuple((unit == units - 1) == (clock.round < 2) for unit in range(units))


def test_a_leaf_that_rests_goes_down_once_to_each_client_that_lacks_it() -> None:
    """The head changed in rounds 0 and 1: clients of round 1 and new clients have not received the change."""
    ledger = CostCounter(task_of(replace(fedavg(), schedule=blinking), 6))
    downs = []
    for round, clients in enumerate([[0], [0], [0, 1], [0, 1], [2], [0, 1, 2]]):
        cost = ledger.count_round(RoundPosition(0, round, round), clients)
        downs.append(cost.bytes_down // DOUBLE)
        assert cost.bytes_up == DOUBLE * len(clients) * (HEAD if round < 2 else BODY)
    assert downs == [HEAD, HEAD, 2 * (BODY + HEAD), 2 * BODY, BODY + HEAD, 3 * BODY]


def test_where_no_upload_was_admitted_nothing_changed() -> None:
    ledger = CostCounter(task_of(replace(fedavg(), schedule=blinking), 3))
    for round in range(2):
        ledger.count_round(RoundPosition(0, round, round), [0, 1], rejected=2)
    assert ledger.count_round(RoundPosition(0, 2, 2), [0]).bytes_down == DOUBLE * BODY


def staged(first: Algorithm, then: Algorithm) -> CostCounter:
    model = then.adapt(first.adapt(network()))
    return CostCounter(Task((Stage(first, 2, LOCAL), Stage(then, 2, LOCAL)), model, federation()))


@pytest.mark.parametrize(
    ("second", "own"),
    [("fedper", HEAD), ("lg-fedavg", BODY), ("fedbabu", HEAD), ("fedavg", 0), ("fedrod", HEAD)],
)
def test_at_a_switch_every_client_gets_what_it_goes_on_with_once(second: str, own: int) -> None:
    """FedPer's head and LG-FedAvg's base start from the server's, FedROD's second from its first head."""
    then = ALGORITHMS[second]
    ledger = staged(fedavg(), then)
    shared = {"fedper": BODY, "lg-fedavg": HEAD, "fedbabu": BODY, "fedavg": WHOLE, "fedrod": WHOLE}[second]
    for round in range(2):
        ledger.count_round(RoundPosition(0, round, round), [0, 1])
    assert ledger.count_round(RoundPosition(1, 2, 0), [0, 2]).bytes_down == DOUBLE * 2 * (shared + own)
    assert ledger.count_round(RoundPosition(1, 3, 1), [0, 1]).bytes_down == DOUBLE * (2 * shared + own)


def test_a_resumed_run_has_the_same_costs() -> None:
    stages = (Stage(replace(scaffold(), schedule=blinking), 3, LOCAL), Stage(ALGORITHMS["fedper"], 3, LOCAL))
    task = Task(stages, network(), federation(), Participation(per_round=2), seed=1)
    lines = list(predicted_lines(task))
    history = [{**line, "rejected": []} for line in lines]
    for done in range(len(lines)):
        ledger = CostCounter(task, history[:done])
        at = RoundPosition(lines[done]["stage"], done, done if done < 3 else done - 3)
        assert ledger.count_round(at, lines[done]["clients"])._asdict() == lines[done]["cost"]


def test_a_run_that_goes_on_from_a_checkpoint_writes_the_same_costs(tmp_path: Path) -> None:
    task = task_of(replace(fedavg(), schedule=blinking), 6, participation=Participation(per_round=2))
    whole = run(task, Sequential(task.model, task.federation)).history
    half = replace(task, stages=(replace(task.stages[0], rounds=3),))
    run(half, Sequential(task.model, task.federation), tmp_path, 3)
    resumed = run(task, Sequential(task.model, task.federation), tmp_path, 3).history
    assert [line["cost"] for line in resumed] == [line["cost"] for line in whole]


def test_precision_halves_the_bytes_and_nothing_else() -> None:
    double = next(predicted_lines(task_of(feddyn(0.1), model=perceptron())))["cost"]
    single = next(
        predicted_lines(
            task_of(feddyn(0.1), model=perceptron(), data=federation(SIZES, IMAGE, torch.float32))
        )
    )["cost"]
    assert single == {**double, "bytes_down": double["bytes_down"] // 2, "bytes_up": double["bytes_up"] // 2}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["fedavg", "fedtr", "moon", "fedrod", "fedbug+scaffold"])
def test_a_run_on_a_gpu_has_the_costs_of_a_cpu(name: str) -> None:
    task = task_of(ALGORITHMS[name], 2, model=network("batch", of=ALGORITHMS[name]))
    there = replace(task, federation=task.federation.to("cuda", torch.float64))
    history = run(there, Stacked(there.model, there.federation)).history
    assert [line["cost"] for line in history] == [line["cost"] for line in predicted_lines(task)]
