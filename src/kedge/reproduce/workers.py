"""Several processes that train packs of runs on one device.

Every worker process trains one pack after another. It sends the end of each run, and messages, to the parent
through one queue. Only the parent receives Ctrl-C. Workers check an event after every round to see if they
should stop, and exit if the parent is killed.
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

INTERVAL = 0.5  # seconds between checks of the queue, of `stop`, and of the parent process


class RunEnd(NamedTuple):
    """The end of the run in a folder; `error` is empty if it finished."""

    folder: Path
    error: str = ""
    trace: str = ""
    diverged: bool = False


def run_end(outcome: Outcome) -> RunEnd:
    """An outcome as plain values that can be sent to another process."""
    error = outcome.error
    if error is None:
        return RunEnd(outcome.request.folder)
    text = str(error) if str(error) else type(error).__name__
    return RunEnd(outcome.request.folder, text, outcome.trace, isinstance(error, Diverged))


def train_in_processes(
    jobs: Sequence[Sequence[RunRequest]],
    workers: int,
    pack: int,
    say: Callable[[str], None],
    stop: Callable[[], bool],
    on_check: Callable[[], None] = lambda: None,
) -> Iterator[RunEnd]:
    """Train all jobs, each in one process; `on_check` is called after each check of the queue."""
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    stopping = context.Event()
    unfinished = {request.folder for job in jobs for request in job}
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), context, prepare_worker, (messages, stopping, os.getpid())
    )
    try:
        with interrupts_blocked():
            running = [pool.submit(train_job, list(job), pack) for job in jobs]
        while unfinished and not all(future.done() for future in running):
            if stop():
                stopping.set()
                for future in running:
                    future.cancel()
            yield from read_messages(messages, unfinished, say, INTERVAL)
            on_check()
        wait(running)
        yield from read_messages(messages, unfinished, say, 0)
        pool.shutdown()
        # A process sends its last messages when it exits.
        yield from read_messages(messages, unfinished, say, 0)
    except BaseException:  # the runs are abandoned, and their folders are removed
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)
        raise
    if stop():
        raise Interrupted
    lost = failure_of(running)
    yield from (RunEnd(folder, lost) for folder in sorted(unfinished))


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT; processes that start in this context inherit that, so Ctrl-C cannot end their imports."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_messages(
    messages: Any, unfinished: set[Path], say: Callable[[str], None], timeout: float
) -> Iterator[RunEnd]:
    """Read the queue for `timeout` seconds: yield ends of runs, drop them from `unfinished`, say messages."""
    until = time.monotonic() + timeout
    while True:
        try:
            message = messages.get(timeout=max(0.05, until - time.monotonic()))
        except queue.Empty:
            return
        if isinstance(message, RunEnd):
            unfinished.discard(message.folder)
            yield message
        else:
            say(message)


def failure_of(running: Sequence[Future[None]]) -> str:
    """The reason why runs did not end, as text."""
    errors = [future.exception() for future in running if not future.cancelled()]
    first = next((error for error in errors if error), None)
    if isinstance(first, BrokenProcessPool):
        return (
            "a process that trained ended suddenly; the system may have had too little memory for it. "
            "Try again with fewer: --workers N"
        )
    return f"{type(first).__name__}: {first}" if first else "the run did not end"


# Globals of a worker process: its queue, and the event that stops it.
MESSAGES: Any = None
STOPPING: Event | None = None


def prepare_worker(messages: Any, stopping: Event, parent: int) -> None:
    """Initialize a worker process."""
    global MESSAGES, STOPPING
    MESSAGES, STOPPING = messages, stopping
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with, args=(parent,), daemon=True).start()


def exit_with(parent: int) -> None:
    """Wait until the process `parent` has exited, then exit this process."""
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os._exit(1)


def train_job(requests: Sequence[RunRequest], pack: int) -> None:
    """Train a pack of runs in this process, and send the end of each run."""
    assert STOPPING is not None
    try:
        for outcome in run_all(requests, pack, False, MESSAGES.put, STOPPING.is_set):
            MESSAGES.put(run_end(outcome))
    except Interrupted:
        return
