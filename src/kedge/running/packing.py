"""Several runs at once, each in a thread of its own.

A run has its own folder, checkpoints and history and goes through the same loop as alone; only its rounds are
asked of a common stack (engines/pack.py). Signals come to the main thread alone: it waits, and the runs look
after every round whether they were asked to stop.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kedge.core.model import Model
from kedge.core.precision import computing_in
from kedge.data.federation import Federation
from kedge.engines.auto import Choice, build
from kedge.engines.captured import Ahead
from kedge.engines.pack import Pack, same
from kedge.engines.programs import never_fall_back
from kedge.engines.stacked import Stacked
from kedge.running.bar import Bar, Together
from kedge.running.execute import (
    begun,
    choice_of,
    held,
    record,
    recorded,
    settled,
    taken_up,
    threads_put_back,
)
from kedge.running.folder import locked
from kedge.running.grouping import Member, fitting, groups, shares
from kedge.running.runner import run
from kedge.running.task import Interrupted, Observer, Task

PATIENCE = 0.2  # seconds between looks for a signal, where waiting does not let them through


class Outcome(NamedTuple):
    """How a run ended: by itself, or with an error."""

    member: Member
    error: Exception | None


class Ready(NamedTuple):
    """A run that may begin: its folder is there, and held against other processes."""

    member: Member
    task: Task


class Abandoned(KeyboardInterrupt):
    """Stopped at once, while threads of this process still compute; what was saved before is whole."""


def carry_out(
    members: Sequence[Member],
    limit: int = 0,
    shown: bool | None = None,
    say: Callable[[str], None] = lambda message: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """All runs, side by side where that is possible, at most `limit` of them (0: as many as fit).

    Outcomes come as runs end; one that fails leaves the others alone. Once `stop` says so, runs end after the
    round at hand with their states saved, and Interrupted is raised.
    """
    for group in groups(members):
        chosen = next(filter(None, (member.engine for member in group)), None)
        wanted = group[0].experiment.engine
        most = 1 if (chosen["name"] if chosen else wanted.name) == "sequential" else limit
        waiting = deque(group)
        while waiting:
            with ExitStack() as locks:
                ready, failed = gathered(waiting, most, locks, stop)
                yield from failed
                if len(ready) > 1 and chosen is None:
                    with computing_in(wanted.precision), threads_put_back():
                        chosen = settled([one.task for one in ready], wanted, say)
                    most = 1 if chosen["name"] == "sequential" else limit
                if chosen is None or most == 1 or len(ready) == 1:
                    for one in ready:
                        yield alone(one, shown, stop)
                else:
                    yield from together(ready, chosen, shown, stop)


def gathered(
    waiting: deque[Member], limit: int, locks: ExitStack, stop: Callable[[], bool]
) -> tuple[list[Ready], list[Outcome]]:
    """The next pack, taken from those who wait; and what cannot begin."""
    ready: list[Ready] = []
    failed: list[Outcome] = []
    size = 1
    while waiting and len(ready) < size:
        if stop():
            raise Interrupted
        member = waiting.popleft()
        try:
            ready.append(made_ready(member, ready, locks))
        except Exception as error:  # this run's affair
            failed.append(Outcome(member, error))
        if len(ready) == 1:
            most = limit or fitting(ready[0].task, member.experiment.engine.chunk)
            size = shares(len(waiting) + 1, most)
    return ready, failed


def made_ready(member: Member, others: Sequence[Ready], locks: ExitStack) -> Ready:
    """A run up to its first round; samples that another one has in memory are not held twice."""
    if member.start == "on":
        _, task = taken_up(member.folder)
    else:
        task = begun(member.experiment, member.folder, member.start == "anew")
    locks.enter_context(locked(member.folder))
    data = task.federation
    for other in (one.task.federation for one in others):
        if data.pool is not other.pool and same(data.pool, other.pool):
            data = replace(data, pool=other.pool)
        if data.test and other.test and data.test is not other.test and same(data.test, other.test):
            data = replace(data, test=other.test)
    return Ready(member, replace(task, federation=data))


def alone(one: Ready, shown: bool | None, stop: Callable[[], bool]) -> Outcome:
    """One run by itself."""
    folder, experiment, _ = one.member
    if stop():
        raise Interrupted
    with Bar(experiment.label, experiment.rounds, shown) as bar:
        watch = Observer(bar.line, bar.say, stop)
        try:
            held(one.task, experiment.engine, experiment.name, experiment.checkpoint.every, folder, watch)
        except Exception as error:  # this run's affair
            return Outcome(one.member, error)
    return Outcome(one.member, None)


def together(
    ready: Sequence[Ready], chosen: dict[str, Any], shown: bool | None, stop: Callable[[], bool]
) -> Iterator[Outcome]:
    """A pack: every run in a thread, the rounds of all in one stack."""
    ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
    left = threading.Event()
    first, choice = ready[0].task, choice_of(chosen)
    title = f"{ready[0].member.experiment.label} × {len(ready)}"
    with (
        computing_in(first.precision),
        threads_put_back(),
        Together(title, [one.task.rounds for one in ready], shown) as bar,
    ):
        torch.set_num_threads(chosen["threads"])
        engines = [stack(choice, task.model, task.federation, task.takes_part) for _, task in ready]
        pack = Pack(engines, lambda whole: stack(choice, first.model, whole))
        pack.at_once = ready[0].member.experiment.engine.chunk

        def carried(number: int) -> None:
            (folder, experiment, _), task = ready[number]
            watch = Observer(bar.line_of(number), bar.say, lambda: stop() or left.is_set())
            try:
                with pack.seated(number) as seat:
                    torch.set_num_threads(chosen["threads"])  # OpenMP and dynamo keep these by thread
                    never_fall_back()
                    own = recorded(folder)
                    if own is None:
                        own = {**chosen, "packed": len(ready)}
                        record(folder, task, own)
                    run(task, seat, folder, experiment.checkpoint.every, own, watch)
            except BaseException as error:  # the main thread decides
                ended.put((number, error))
            else:
                ended.put((number, None))

        # Daemons, for a thread amid a step cannot be stopped, and who wants to leave at once may.
        threads = [threading.Thread(target=carried, args=(n,), daemon=True) for n in range(len(ready))]
        interrupted = False
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                number, error = heard(ended)
                bar.ended(number, error)
                if error is None or isinstance(error, Exception):
                    yield Outcome(ready[number].member, error)
                elif isinstance(error, Interrupted):
                    interrupted = True
                else:
                    raise error
        except BaseException as error:
            left.set()
            if isinstance(error, KeyboardInterrupt):
                raise Abandoned from None
            raise
        for thread in threads:
            thread.join()
    if interrupted:
        raise Interrupted


def stack(choice: Choice, model: Model, data: Federation, ahead: Ahead | None = None) -> Stacked:
    """The engine of a choice, which has rows."""
    engine = build(choice, model, data, ahead)
    assert isinstance(engine, Stacked), choice.name
    return engine


def heard(ended: "queue.SimpleQueue[tuple[int, BaseException | None]]") -> tuple[int, BaseException | None]:
    """Which run ended, and how; waits in a way that lets signals through everywhere."""
    while True:
        try:
            return ended.get(timeout=PATIENCE)
        except queue.Empty:
            continue
