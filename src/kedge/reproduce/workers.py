"""Several processes that train packs of runs side by side on one device.

Every process takes a pack, trains it, and takes the next. It tells of each run that ends, and of messages,
through one queue. Ctrl-C comes to the first process only; the others look after every round whether they
should stop, and end with the first process if that is killed.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

from kedge.core.errors import Diverged
from kedge.running.progress import Interrupted
from kedge.running.requests import Outcome, RunRequest
from kedge.running.several_runs import run_all

LOOK = 0.5  # seconds between looks at the queue, at a signal, and at the first process


class End(NamedTuple):
    """How a run in a folder ended; an empty error: well."""

    folder: Path
    error: str = ""
    trace: str = ""
    diverged: bool = False


def end_of(outcome: Outcome) -> End:
    """An outcome as plain values, which another process can read."""
    error = outcome.error
    if error is None:
        return End(outcome.request.folder)
    text = str(error) if str(error) else type(error).__name__
    return End(outcome.request.folder, text, outcome.trace, isinstance(error, Diverged))


def side_by_side(
    jobs: Sequence[Sequence[RunRequest]],
    workers: int,
    pack: int,
    say: Callable[[str], None],
    stop: Callable[[], bool],
    look: Callable[[], None] = lambda: None,
) -> Iterator[End]:
    """Train all jobs, each in one process; `look` is called every now and then."""
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    stopping = context.Event()
    left = {member.folder for job in jobs for member in job}
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), context, prepare_worker, (told, stopping, os.getpid())
    )
    try:
        with interrupts_blocked():
            running = [pool.submit(train_job, list(job), pack) for job in jobs]
        while left and not all(one.done() for one in running):
            if stop():
                stopping.set()
                for one in running:
                    one.cancel()
            yield from heard(told, left, say, LOOK)
            look()
        wait(running)
        yield from heard(told, left, say, 0)
        pool.shutdown()
        yield from heard(told, left, say, 0)  # a process sends the last of its messages when it ends
    except BaseException:  # nobody waits for the runs any more, and their folders are removed
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)
        raise
    if stop():
        raise Interrupted
    lost = failure_of(running)
    yield from (End(folder, lost) for folder in sorted(left))


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """In this context Ctrl-C waits; processes that start in it never get one, not even while they import."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heard(told: Any, left: set[Path], say: Callable[[str], None], patience: float) -> Iterator[End]:
    """What the processes told since the last time; waits for the first message."""
    until = time.monotonic() + patience
    while True:
        try:
            message = told.get(timeout=max(0.05, until - time.monotonic()))
        except queue.Empty:
            return
        if isinstance(message, End):
            left.discard(message.folder)
            yield message
        else:
            say(message)


def failure_of(running: Sequence[Future[None]]) -> str:
    """Why runs did not end, in words."""
    errors = [one.exception() for one in running if not one.cancelled()]
    found = next((error for error in errors if error), None)
    if isinstance(found, BrokenProcessPool):
        return (
            "a process that trained ended suddenly; the system may have had too little memory for it. "
            "Try again with fewer: --workers N"
        )
    return f"{type(found).__name__}: {found}" if found else "the run did not end"


# In a process that trains: its queue, and what tells it to stop.
TOLD: Any = None
STOPPING: Event | None = None


def prepare_worker(told: Any, stopping: Event, parent: int) -> None:
    """Called in a new process before its first job."""
    global TOLD, STOPPING
    TOLD, STOPPING = told, stopping
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def end_with(parent: int) -> None:
    """End this process if its parent has ended."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def train_job(members: Sequence[RunRequest], pack: int) -> None:
    """Train a pack of runs in this process, and tell how each ended."""
    assert STOPPING is not None
    try:
        for outcome in run_all(members, pack, False, TOLD.put, STOPPING.is_set):
            TOLD.put(end_of(outcome))
    except Interrupted:
        return
