"""Ctrl-C and SIGTERM: stop the runs of this process, with what was saved whole.

Ctrl-C once: the runs stop after the round at hand and save their states. Twice: KeyboardInterrupt.

SIGTERM (a batch system, a container): the runs are asked to stop in the same way, and the process ends with
exit code 130 after GRACE seconds even if the round has not ended, or at once if a second SIGTERM or Ctrl-C
comes. Where no run is carried out, SIGTERM ends the process at once.

Python calls signal handlers in the main thread, between two steps of Python code: never while torch computes.
The part of its handler that is written in C does run then, and writes the signal's number to a socket
(signal.set_wakeup_fd). A thread reads that socket.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from kedge.cli.options import say

GRACE = 8.0  # seconds from SIGTERM to the end of the process; container runtimes kill after 10
PATIENCE = 0.5  # seconds for a message or a flush, which a full pipe would block
SHOW_CURSOR = "\x1b[?25h\n"  # a progress bar hides it
INTERRUPTED = 130


class Stop:
    """Whether the runs are asked to stop, and what to say if the process ends before they do."""

    def __init__(self, farewell: Callable[[], str]) -> None:
        self.farewell = farewell
        self.asked = False  # by Ctrl-C or SIGTERM
        self.terminated = False  # by SIGTERM


class Terminator:
    """Ends this process after SIGTERM, from a thread of its own.

    `main` calls `start` once. `stoppable` sets `stop` while runs are carried out. The thread calls `heard`
    with the signals that came, and `leave` when the time is up.
    """

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.deadline: float | None = None  # set by the first SIGTERM
        self.farewell = "interrupted"  # where no run is carried out

    def start(self) -> None:
        """Wait for SIGTERM from now on; only the main thread may call this."""
        self.inbox, outbox = socket.socketpair()
        outbox.setblocking(False)
        signal.set_wakeup_fd(outbox.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self.note)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forget_signals)
        threading.Thread(target=self.watch, name="kedge-signals", daemon=True).start()

    def note(self, number: int, frame: FrameType | None) -> None:
        """In the main thread: errors from now on may be of children that got the same SIGTERM."""
        if self.stop:
            self.stop.terminated = True

    def watch(self) -> None:
        """Read the signals as they come, until the time is up."""
        while True:
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            came, _, _ = select.select([self.inbox], [], [], left)
            if not came:
                self.leave()
            self.heard(self.inbox.recv(64))

    def heard(self, numbers: bytes) -> None:
        """Act on signals: the first SIGTERM asks the runs to stop, another one or Ctrl-C after it leaves."""
        terms, interrupts = numbers.count(signal.SIGTERM), numbers.count(signal.SIGINT)
        stop = self.stop
        if self.deadline is not None:
            if terms or interrupts:
                self.leave()
        elif terms:
            self.deadline = time.monotonic() + GRACE
            if stop is None or stop.asked or terms + interrupts > 1:
                self.leave()
            stop.asked = stop.terminated = True
            within(lambda: say(f"SIGTERM: stopping after this round, at the latest in {GRACE:.0f} s"))

    def leave(self) -> NoReturn:
        """End the process without waiting for anything that computes or writes."""
        try:
            message = self.stop.farewell() if self.stop else self.farewell
            within(lambda: tell_and_flush(message))
        finally:
            os._exit(INTERRUPTED)


TERMINATOR = Terminator()


@contextmanager
def stoppable(farewell: Callable[[], str]) -> Iterator[Stop]:
    """While runs are carried out, let Ctrl-C and SIGTERM ask them to stop.

    `farewell` gives the message of a process that ends before they have stopped.
    """
    stop = TERMINATOR.stop = Stop(farewell)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.terminated:
            return  # the terminator has heard it too
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        say("stopping after this round; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    except BaseException:
        TERMINATOR.farewell = ""  # who catches the error says what happened
        raise
    finally:
        TERMINATOR.stop = None
        signal.signal(signal.SIGINT, before)


def within(work: Callable[[], None]) -> None:
    """Do this in a thread, and wait for it no longer than PATIENCE."""
    thread = threading.Thread(target=work, daemon=True)
    with suppress(RuntimeError):  # Python begins no thread while it shuts down
        thread.start()
        thread.join(PATIENCE)


def tell_and_flush(message: str) -> None:
    """Write what this process still has to say."""
    with suppress(OSError, ValueError):  # nobody reads any more
        if message:
            say(message)
        sys.stderr.flush()
        sys.stdout.flush()
        terminal = sys.__stderr__  # sys.stderr is the progress bar's, which drops control codes
        if terminal and terminal.isatty():
            terminal.write(SHOW_CURSOR)
            terminal.flush()


def forget_signals() -> None:
    """In a forked child: SIGTERM ends it as it ends any process, and does not reach its parent's thread."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
