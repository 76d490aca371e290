"""Several runs at once, in a thread beside the main one.

Each run has its own folder, checkpoints and history and goes through the same loop as a run alone; a common
stack (engines/pack/pack.py) trains its rounds. Only the main thread receives signals: it waits, and each run
checks after every round whether it should stop.
"""

import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import torch

from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.engines.choose import Choice, build
from kedge.engines.compiling import compile_failure
from kedge.engines.cuda.captured import Ahead
from kedge.engines.engine import Rounds, ran_out
from kedge.engines.fallback import without_torch_warnings
from kedge.engines.pack.pack import Pack
from kedge.engines.programs import never_fall_back
from kedge.engines.stacked import Stacked
from kedge.engines.unstackable import unstackable
from kedge.nn.precision import computing_in
from kedge.running.bar import Bar, Together
from kedge.running.execute import (
    choice_of,
    held,
    record,
    recorded,
    settled,
    threads_put_back,
)
from kedge.running.grouping import Member, fitting, groups, shares
from kedge.running.progress import Interrupted, Observer, Progress
from kedge.running.ready import Ready, make_ready
from kedge.running.runner import rounds

Raised = TypeVar("Raised", bound=BaseException)
Ended = tuple[int, BaseException | None, str, bool]  # of a run: number, error, traceback, out of memory
PATIENCE = 0.2  # seconds between looks for a signal, where waiting does not let them through


class Outcome(NamedTuple):
    """How a run ended: by itself, or with an error, its traceback, and whether it is about memory."""

    member: Member
    error: Exception | None = None
    trace: str = ""
    short: bool = False


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
        waiting = deque(group)
        chosen = next(filter(None, (member.engine for member in group)), None)
        most = limit
        while waiting:
            chosen, most = yield from next_pack(waiting, chosen, most, shown, say, stop)
            torch.cuda.empty_cache()  # what is free decides how many fit next


def next_pack(
    waiting: deque[Member],
    chosen: dict[str, Any] | None,
    limit: int,
    shown: bool | None,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> Generator[Outcome, None, tuple[dict[str, Any] | None, int]]:
    """Some of those who wait; returns the engine that was chosen for them, and the limit: both for the rest.

    Runs that memory did not suffice for beside their common stack wait again, to go on in smaller packs.
    """
    wanted = waiting[0].experiment.engine
    if (chosen["name"] if chosen else wanted.name) == "sequential":
        limit = 1
    with ExitStack() as locks:
        ready, failed = gathered(waiting, limit, locks, stop)
        yield from failed
        pack = None
        try:
            if len(ready) > 1 and chosen is None:
                with computing_in(wanted.precision), threads_put_back(), without_torch_warnings():
                    chosen = settled([one.task for one in ready], wanted, say)
            if len(ready) > 1 and chosen and chosen["name"] != "sequential":
                pack = pack_of(ready, choice_of(chosen))
        except Exception as error:  # of this engine, hence of all these runs
            bared = bare(error)
            yield from (Outcome(one.member, *bared) for one in ready)
            return chosen, limit
        again, plain = [], []
        if pack and chosen:
            for outcome in together(ready, pack, chosen, shown, stop):
                if outcome.short:
                    again.append(outcome.member._replace(start="on"))
                elif wanted.name == "auto" and outcome.error and compile_failure(outcome.error):
                    plain.append(outcome.member)  # run alone, `auto` chooses an engine that compiles nothing
                else:
                    yield outcome
        for one in ready:
            if not pack or one.member in plain:
                yield alone(one, shown, stop)
    if again:
        limit = max(1, len(ready) // 2)
        waiting.extend(again)
        say(f"out of memory: {len(again)} run(s) go on from what they saved, at most {limit} side by side")
    return chosen, limit


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
            ready.append(make_ready(member, ready, locks))
        except Exception as error:  # this run's affair
            failed.append(Outcome(member, *bare(error)))
        if len(ready) == 1:
            most = limit or fitting(ready[0].task, member.experiment.engine.chunk)
            size = shares(len(waiting) + 1, most)
    return ready, failed


def alone(one: Ready, shown: bool | None, stop: Callable[[], bool]) -> Outcome:
    """One run by itself."""
    folder, experiment, *_ = one.member
    if stop():
        raise Interrupted
    with Bar(experiment.label, experiment.rounds, shown) as bar:
        watch = Observer(bar.line, bar.say, stop)
        try:
            held(one.task, experiment.engine, experiment.name, experiment.checkpoint.every, folder, watch)
        except Exception as error:  # this run's affair
            return Outcome(one.member, *bare(error))
    return Outcome(one.member)


def pack_of(ready: Sequence[Ready], choice: Choice) -> Pack:
    """The common stack of these runs."""

    def stack(model: Model, data: Federation, ahead: Ahead | None = None) -> Stacked:
        engine = build(choice, model, data, ahead)
        assert isinstance(engine, Stacked), choice.name
        return engine

    engines = [stack(task.model, task.federation, task.takes_part) for _, task in ready]
    chunk = ready[0].member.experiment.engine.chunk
    return Pack(engines, lambda whole: stack(ready[0].task.model, whole), chunk)


def together(
    ready: Sequence[Ready],
    pack: Pack,
    chosen: dict[str, Any],
    shown: bool | None,
    stop: Callable[[], bool],
) -> Iterator[Outcome]:
    """All runs in one thread, their rounds in one stack."""
    ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    told: set[int] = set()
    left = threading.Event()
    title = f"{ready[0].member.experiment.label} × {len(ready)}"
    with (
        computing_in(ready[0].task.precision),
        threads_put_back(),
        without_torch_warnings(),
        Together(title, [one.task.rounds for one in ready], shown) as bar,
    ):
        torch.set_num_threads(chosen["threads"])

        def begun_run(number: int) -> Rounds[Progress]:
            (folder, experiment, *_), task = ready[number]
            watch = Observer(bar.line_of(number), bar.say, lambda: stop() or left.is_set())
            own = recorded(folder)
            if own is None:
                own = {**chosen, "packed": len(ready)}
                record(folder, task, own)
            every = experiment.checkpoint.every
            return (yield from rounds(task, pack.engines[number], folder, every, own, watch))

        def tell(number: int, end: Progress | BaseException) -> None:
            told.add(number)
            if isinstance(end, BaseException):
                short = ran_out(end)  # before its causes are cut off
                ended.put((number, *bare(end), short))
            else:
                ended.put((number, None, "", False))

        def carried() -> None:
            torch.set_num_threads(chosen["threads"])  # OpenMP and dynamo keep these by thread
            never_fall_back()
            try:
                pack.carry_out([begun_run(number) for number in range(len(ready))], tell)
            except BaseException as error:  # of the pack itself: nobody may wait for ever
                for number in set(range(len(ready))) - told:
                    tell(number, error)

        # A daemon, for a thread amid a step cannot be stopped, and who wants to leave at once may.
        thread = threading.Thread(target=carried, daemon=True)
        interrupted = False
        try:
            thread.start()
            for _ in ready:
                number, error, trace, short = heard(ended)
                bar.ended(number, error)
                if error is None or isinstance(error, Exception):
                    yield Outcome(ready[number].member, error, trace, short)
                elif isinstance(error, Interrupted):
                    interrupted = True
                else:
                    raise error
        except BaseException as error:
            left.set()
            if isinstance(error, KeyboardInterrupt):
                raise Abandoned from None
            raise
        thread.join()
    if interrupted:
        raise Interrupted


def bare(error: Raised) -> tuple[Raised | RequestError, str]:
    """The error without its traceback, whose frames hold on to run, pack and memory; and that as text."""
    trace = "".join(traceback.format_exception(error))
    told = unstackable(error) or error
    told.__cause__ = told.__context__ = None
    return told.with_traceback(None), trace


def heard(ended: "queue.SimpleQueue[Ended]") -> Ended:
    """Which run ended, and how; waits in a way that lets signals through everywhere."""
    while True:
        try:
            return ended.get(timeout=PATIENCE)
        except queue.Empty:
            continue
