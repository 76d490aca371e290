"""Several runs at once: which may share a stack, how many fit into memory, each in a thread of its own.

A run has its own folder, checkpoints and history and goes through the same loop as alone; only its rounds are
asked of a common stack (engines/pack.py). What runs must have in common for that is their network, data,
training and engine, and all that makes a step's program: method, schedule and kind of optimizer. Seed,
learning rate, partition, participation, rounds and evaluation are each run's own.
"""

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from kedge.core.algorithm import fitted
from kedge.core.precision import computing_in
from kedge.core.tree import flatten, only
from kedge.engines.auto import COPIES, build, rows_at_once
from kedge.engines.memory import Memories
from kedge.engines.pack import Pack, same
from kedge.engines.programs import never_fall_back
from kedge.engines.stacked import Stacked
from kedge.running.bar import Bar, Together
from kedge.running.config import Experiment
from kedge.running.execute import (
    begun,
    choice_of,
    execute,
    record,
    recorded,
    resume,
    settled,
    taken_up,
    threads_put_back,
)
from kedge.running.folder import locked
from kedge.running.runner import run
from kedge.running.task import Interrupted, Observer, Task

MOST = 16  # runs of a pack, unless told otherwise: more gain little
APART = ("lr", "decay")  # settings of an optimizer that are tensors in a step

Stop = Callable[[], bool]


class Member(NamedTuple):
    """A run to be carried out, and whether it begins, replaces what lies in its folder, or goes on."""

    folder: Path
    experiment: Experiment
    start: Literal["new", "anew", "on"] = "new"


class Outcome(NamedTuple):
    """How a run ended: by itself, or with an error."""

    member: Member
    error: Exception | None


class Ready(NamedTuple):
    """A run that may begin: its folder is there, and nobody else's."""

    member: Member
    task: Task


class Abandoned(KeyboardInterrupt):
    """Stopped at once, while threads still compute; what they had saved is whole."""


def carry_out(
    members: Sequence[Member], limit: int = 0, shown: bool | None = None, stop: Stop = lambda: False
) -> Iterator[Outcome]:
    """All runs, side by side where that is possible, at most `limit` of them (0: as many as fit).

    Outcomes come as runs end; one that fails leaves the others alone. Once `stop` says so, runs end after the
    round at hand with their states saved, and Interrupted is raised.
    """
    for group in groups(members):
        if limit == 1 or len(group) == 1 or one_by_one(group):
            for member in group:
                yield alone(member, shown, stop)
        else:
            yield from packed(group, limit, shown, stop)


def groups(members: Iterable[Member]) -> list[list[Member]]:
    """Those that may train side by side, in the order of their first ones.

    What a run began with holds when it goes on; those not yet begun join one that has.
    """
    alike: dict[str, list[Member]] = {}
    for member in members:
        alike.setdefault(kind(member.experiment), []).append(member)
    found: list[list[Member]] = []
    for group in alike.values():
        by_record: dict[str, list[Member]] = {}
        new = [member for member in group if engine_of(member) is None]
        for member in group:
            if member not in new:
                record = {k: v for k, v in (engine_of(member) or {}).items() if k not in ("packed", "reason")}
                by_record.setdefault(json.dumps(record, sort_keys=True), []).append(member)
        first = next(iter(by_record), "")
        by_record[first] = [*by_record.get(first, []), *new]
        found += [sorted(own, key=group.index) for own in by_record.values()]
    return found


def kind(experiment: Experiment) -> str:
    """What runs of one pack have in common."""
    stages = [(method, schedule, rule) for method, schedule, _, rule in experiment.stages]
    return json.dumps(
        {
            "model": experiment.model,
            "data": experiment.data,
            "training": asdict(experiment.training),
            "engine": asdict(experiment.engine),
            "stages": stages,
            "optimizer": {k: v for k, v in experiment.optimizer.items() if k not in APART},
            "watched": [experiment.evaluation.all, experiment.measure.drift, experiment.measure.spread],
        },
        sort_keys=True,
    )


def engine_of(member: Member) -> dict[str, Any] | None:
    """What a run that goes on began with."""
    return recorded(member.folder) if member.start == "on" else None


def one_by_one(group: Sequence[Member]) -> bool:
    """Whether these were asked, or chosen before, to train one client after another."""
    chosen = next(filter(None, map(engine_of, group)), None)
    return (chosen["name"] if chosen else group[0].experiment.engine.name) == "sequential"


def alone(member: Member, shown: bool | None, stop: Stop) -> Outcome:
    """One run by itself."""
    if stop():
        raise Interrupted
    with Bar(member.experiment.label, member.experiment.rounds, shown) as bar:
        observer = Observer(bar.line, bar.say, stop)
        try:
            if member.start == "on":
                resume(member.folder, observer)
            else:
                execute(member.experiment, member.folder, observer, member.start == "anew")
        except Exception as error:
            return Outcome(member, error)
    return Outcome(member, None)


def packed(group: Sequence[Member], limit: int, shown: bool | None, stop: Stop) -> Iterator[Outcome]:
    """Runs of one kind, pack after pack."""
    chosen = next(filter(None, map(engine_of, group)), None)
    waiting, size = deque(group), 0
    while waiting:
        with ExitStack() as locks:
            ready: list[Ready] = []
            while waiting and (not ready or len(ready) < size):
                if stop():
                    raise Interrupted
                member = waiting.popleft()
                try:
                    ready.append(made_ready(member, ready, locks))
                except Exception as error:
                    yield Outcome(member, error)
                    continue
                if not size:
                    most = limit or fitting(ready[0].task, member.experiment.engine.chunk)
                    packs = -(-(len(waiting) + 1) // most)
                    size = -(-(len(waiting) + 1) // packs)
            yield from together(ready, chosen, shown, stop)
