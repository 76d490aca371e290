"""Handle Ctrl-C and SIGTERM: stop the runs of this process and leave undamaged checkpoints.

First Ctrl-C: the runs stop after the current round and save their states. Second Ctrl-C: KeyboardInterrupt.

SIGTERM (from a batch system or a container): the runs stop in the same way, and the process ends with exit
code 130 after GRACE seconds even if the round has not ended, or at once after a second SIGTERM or a Ctrl-C.
If no run is training, SIGTERM ends the process at once.

Python calls signal handlers in the main thread between two bytecodes, not while torch computes. Its C-level
handler also runs while torch computes, and writes the signal's number to a socket (signal.set_wakeup_fd). A
thread reads that socket.
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

from kedge.cli.output import print_message

GRACE = 8.0  # seconds from SIGTERM to the end of the process; container runtimes kill after 10
PATIENCE = 0.5  # seconds for a message or a flush, which a full pipe blocks
SHOW_CURSOR = "\x1b[?25h\n"  # a progress bar hides the cursor
INTERRUPTED = 130


class Stop:
    """A request to stop the runs; `farewell` returns the message to print if the process ends before."""

    def __init__(self, farewell: Callable[[], str]) -> None:
        self.farewell = farewell
        self.requested = False  # by Ctrl-C or SIGTERM
        self.terminated = False  # by SIGTERM


class Terminator:
    """Ends this process after SIGTERM, from a thread of its own.

    `main` calls `start` once. `stoppable` sets `stop` while runs train. The thread calls `handle` with the
    signals it receives, and `exit_now` when the time is up.
    """

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.deadline: float | None = None  # set by the first SIGTERM
        self.farewell = "interrupted"  # printed if no run is training

    def start(self) -> None:
        """Install the SIGTERM handler and start the thread; call this in the main thread."""
        self.inbox, outbox = socket.socketpair()
        outbox.setblocking(False)
        signal.set_wakeup_fd(outbox.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self.record_sigterm)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forget_signals)
        threading.Thread(target=self.watch, name="kedge-signals", daemon=True).start()

    def record_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Record the SIGTERM in the main thread: later errors may come from child processes it ended, too."""
        if self.stop:
            self.stop.terminated = True

    def watch(self) -> None:
        """Wait for signals and handle them, until the time is up."""
        while True:
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            ready, _, _ = select.select([self.inbox], [], [], left)
            if not ready:
                self.exit_now()
            self.handle(self.inbox.recv(64))

    def handle(self, numbers: bytes) -> None:
        """Handle signals: the first SIGTERM requests a stop of the runs, a second one or Ctrl-C exits."""
        terms, interrupts = numbers.count(signal.SIGTERM), numbers.count(signal.SIGINT)
        stop = self.stop
        if self.deadline is not None:
            if terms or interrupts:
                self.exit_now()
        elif terms:
            self.deadline = time.monotonic() + GRACE
            if stop is None or stop.requested or terms + interrupts > 1:
                self.exit_now()
            stop.requested = stop.terminated = True
            run_briefly(
                lambda: print_message(f"SIGTERM: stopping after this round, at the latest in {GRACE:.0f} s")
            )

    def exit_now(self) -> NoReturn:
        """Exit the process without waiting for other threads."""
        try:
            message = self.stop.farewell() if self.stop else self.farewell
            run_briefly(lambda: print_and_flush(message))
        finally:
            os._exit(INTERRUPTED)


TERMINATOR = Terminator()


@contextmanager
def stoppable(farewell: Callable[[], str]) -> Iterator[Stop]:
    """In this context, Ctrl-C and SIGTERM request a stop of the runs.

    `farewell` returns the message to print if the process ends before they have stopped.
    """
    stop = TERMINATOR.stop = Stop(farewell)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.terminated:
            return  # the terminator's thread handles it, too
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        print_message("stopping after this round; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    except BaseException:
        TERMINATOR.farewell = ""  # the handler of the error prints its own message
        raise
    finally:
        TERMINATOR.stop = None
        signal.signal(signal.SIGINT, before)


def run_briefly(work: Callable[[], None]) -> None:
    """Call `work` in a thread, and wait for it at most PATIENCE seconds."""
    thread = threading.Thread(target=work, daemon=True)
    with suppress(RuntimeError):  # Python starts no thread while it shuts down
        thread.start()
        thread.join(PATIENCE)


def print_and_flush(message: str) -> None:
    """Print the message, flush the streams, and show the cursor."""
    with suppress(OSError, ValueError):  # the reader of the pipe is gone
        if message:
            print_message(message)
        sys.stderr.flush()
        sys.stdout.flush()
        terminal = sys.__stderr__  # sys.stderr is the progress bar's, which drops control codes
        if terminal and terminal.isatty():
            terminal.write(SHOW_CURSOR)
            terminal.flush()


def forget_signals() -> None:
    """In a forked child, restore the default SIGTERM handling, without the parent's socket."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
