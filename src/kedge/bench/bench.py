"""The benchmark: all rows of a workload are measured in turns, in one run, and told as ratios."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch

from kedge.algorithms import fedavg
from kedge.bench.loops import Round, central, plain_loop
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.server import Server, broadcast, initial_server, server_update
from kedge.core.tree import tree_to
from kedge.engines.choose import EngineOptions, build, choose
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.direct import Direct
from kedge.engines.engine import Assignment, Engine, Order, Rounds, drive
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.engines.trial import Work

BLOCK_SECONDS = 0.4
LONG_RUN = 100_000  # rounds to come, when asking what auto would choose for a long experiment


class Row(NamedTuple):
    """One way to do the work."""

    workload: str
    how: str
    samples_per_second: float
    to_plain: float
    to_central: float
    warmup_seconds: float


def bench(
    workloads: Sequence[Workload],
    device: str = "cpu",
    repeats: int = 7,
    compiled: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> list[Row]:
    """Rows for every workload."""
    return [row for work in workloads for row in timed_rows(work, device, repeats, compiled, say)]


def timed_rows(
    work: Workload, device: str, repeats: int, compiled: bool, say: Callable[[str], None]
) -> list[Row]:
    """The rows of one workload: warmed up one by one, then measured in turns, median of blocks."""
    task = replace(work.task(device), stages=(Stage(fedavg(), 1, work.local()),))
    data = task.federation
    gpu = device.startswith("cuda")
    compiled = compiled and (work.compiled or gpu)
    engines: dict[str, Callable[[], Round]] = {
        "plain loop": lambda: plain_loop(work, data),
        "sequential": lambda: rounds_of(task, Sequential(task.model, data)),
        "stacked": lambda: rounds_of(task, Stacked(task.model, data)),
    }
    if compiled and gpu:
        engines["captured"] = lambda: rounds_of(
            task, captured_stack(task.model, data, participants=task.takes_part)
        )
    elif compiled:
        engines["stacked, compiled"] = lambda: rounds_of(
            task, Stacked(task.model, data, backend=Direct(True, task.model.half))
        )
    engines["central"] = lambda: central(work, data)
    rounds: dict[str, Round] = {}
    warmup: dict[str, float] = {}
    for how, make in engines.items():
        say(f"{work.name}: warming up {how}")
        start = time.perf_counter()
        rounds[how] = make()
        rounds[how](0)
        rounds[how](1)
        synchronize(device)
        warmup[how] = time.perf_counter() - start
    rounds_to_come = LONG_RUN if compiled else 1
    wanted = EngineOptions(streams=1)  # no trial of several
    choice = choose(Work(task.model, data, task.stages[0], work.per_round, rounds_to_come), wanted)
    auto = "stacked, compiled" if choice.name == "stacked" and choice.compiled else choice.name
    if auto not in rounds:
        rounds[auto] = rounds_of(task, build(choice, task.model, data))
    say(f"{work.name}: measuring")
    speeds: dict[str, list[float]] = {how: [] for how in rounds}
    for _ in range(repeats):
        for how, one in rounds.items():
            speeds[how].append(block(one, device))
    middle = {how: median(values) for how, values in speeds.items()}
    # Ratios are taken within each turn, so that a slow moment of the machine falls on both sides.
    plain = {
        how: median(a / b for a, b in zip(v, speeds["plain loop"], strict=True)) for how, v in speeds.items()
    }
    top = {how: median(a / b for a, b in zip(v, speeds["central"], strict=True)) for how, v in speeds.items()}
    names = {how: f"{how} (auto)" if how == auto else how for how in rounds}
    return [
        Row(work.name, names[how], middle[how], plain[how], top[how], warmup.get(how, 0.0)) for how in rounds
    ]


def block(one: Round, device: str) -> float:
    """Samples per second over at least BLOCK_SECONDS."""
    samples, number = 0, 2
    start = time.perf_counter()
    while True:
        samples += one(number)
        number += 1
        synchronize(device)
        seconds = time.perf_counter() - start
        if seconds >= BLOCK_SECONDS:
            return samples / seconds


def rounds_of(
    task: Task, engine: Engine, tell: Callable[[Server, Engine], None] = lambda server, engine: None
) -> Round:
    """Rounds as the runner does them: sample, train, update, and what is told afterwards."""
    state = begun_on(task, engine)

    def round(number: int) -> int:
        samples = drive(one_round(task, state, number), engine)
        tell(state["server"], engine)
        return samples

    return round


def begun_on(task: Task, engine: Engine) -> dict[str, Any]:
    """A run before its first round: its server, and its engine in its only stage."""
    stage, data = task.stages[0], task.federation
    params, buffers = (tree_to(v, data.dtype, data.pool.x.device) for v in task.model.init(task.seed))
    engine.begin(stage, params, frozenset())
    return {"server": initial_server(stage.algorithm, task.model, params, buffers)}


def one_round(task: Task, state: dict[str, Any], number: int) -> Rounds[int]:
    """One round of a run whose server is in `state`; how many samples it was."""
    algorithm, data, server = task.stages[0].algorithm, task.federation, state["server"]
    clients = task.takes_part(number)
    order = Order(number, number, task.seed, server.shared, server.buffers, broadcast(algorithm, server))
    reply = yield Assignment(order, clients)
    state["server"] = server_update(algorithm, server, reply, len(data.clients), number)
    return sum(len(data.clients[c]) for c in clients)


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
