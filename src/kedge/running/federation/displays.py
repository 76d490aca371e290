"""Displays of a server: a live table on a terminal, lines without a terminal, or events as JSON."""

import json
import sys
import time
from datetime import UTC, datetime
from threading import Lock
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from kedge.engines.flower.events import Events
from kedge.running.federation.board import Board
from kedge.running.federation.private_events import SECRET
from kedge.running.progress import Observer
from kedge.running.progress_bar import accuracy_in
from kedge.running.recording.evaluation import finite_or_none

LINE_SECONDS = 30.0  # between two lines on rounds, without a terminal
REFRESHES = 2  # of the live table, a second


class Display(Protocol):
    """Shows a server's training; a context manager."""

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Show an event."""
        ...

    def line(self, line: dict[str, Any]) -> None:
        """Show a line of the history."""
        ...

    def say(self, message: str) -> None:
        """Show a message."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def observer_of(display: Display) -> tuple[Observer, Events]:
    """The callbacks of a run that is shown by `display`."""
    return Observer(display.line, display.say), Events(display.event)


class JsonDisplay:
    """Events as lines of JSON, each with its time; messages and lines of the history are events, too."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, by default standard error."""
        self.stream = stream or sys.stderr

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Write an event, except signs of life, and messages that name participants of a private round."""
        if kind not in ("seen", SECRET):
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"time": now, "event": kind, **facts}), file=self.stream, flush=True)

    def line(self, line: dict[str, Any]) -> None:
        """Write a line of the history; it may be that of the round before the current one."""
        self.event("history", {"line": line})

    def say(self, message: str) -> None:
        """Write a message."""
        self.event("message", {"text": message})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.flush()


class LineDisplay:
    """Messages, and a line on the newest round at most every `LINE_SECONDS` seconds, and on the last one."""

    def __init__(self, rounds: int, quiet: bool) -> None:
        self.rounds, self.quiet = rounds, quiet
        self.console = Console(stderr=True)
        self.shown = 0.0

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Show messages for the operator alone; other important events are messages, too."""
        if kind == SECRET:
            self.say(facts["text"])

    def line(self, line: dict[str, Any]) -> None:
        """Print the round and its accuracy."""
        now = time.monotonic()
        if self.quiet or (now - self.shown < LINE_SECONDS and self.shown and line["round"] < self.rounds):
            return
        self.shown = now
        self.say(line_text(line, self.rounds))

    def say(self, message: str) -> None:
        """Print a message; also if `quiet`, because it may be a warning."""
        self.console.print(printable(message), style="dim", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveTable:
    """A table of the clients at the bottom of a terminal; messages are printed above it.

    The thread of the training calls `event`, `line` and `say`. A thread of rich calls `render` `REFRESHES`
    times a second, so that the seconds since a client was last seen go by. The lock separates the two.
    """

    def __init__(self, label: str, rounds: int, console: Console | None = None) -> None:
        self.label, self.rounds = label, rounds
        self.board, self.lock = Board(), Lock()
        self.address, self.accuracy = "", ""
        console = console or Console(stderr=True)
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=REFRESHES)

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Change the table."""
        if kind == SECRET:
            self.say(facts["text"])
        with self.lock:
            self.address = facts.get("address", self.address)
            self.board.event(kind, facts)

    def line(self, line: dict[str, Any]) -> None:
        """Show the round and the accuracy of a line of the history; a private run has no events of rounds."""
        with self.lock:
            self.board.round = max(self.board.round, line["round"])
            if (accuracy := accuracy_in(line)) is not None:
                self.accuracy = f"accuracy {100 * accuracy:.1f} % after round {line['round']}"

    def say(self, message: str) -> None:
        """Print a message above the table."""
        self.live.console.print(
            printable(message), style="dim", markup=False, highlight=False, soft_wrap=True
        )

    def render(self) -> RenderableType:
        """The title and the table."""
        with self.lock:
            board = self.board
            parts = [
                self.label,
                self.address,
                f"round {board.round} of {self.rounds}" if board.round else "before the first round",
                f"{board.connected} of {len(board.rows)} clients connected",
                self.accuracy,
            ]
            title = Text("  ·  ".join(part for part in parts if part), style="bold", no_wrap=True)
            return Group(title, board.table(time.time()))

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()


def printable(message: str) -> str:
    """A message that may quote a client, without characters that control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in message)


def line_text(line: dict[str, Any], rounds: int) -> str:
    """A line of the history as a sentence."""
    accuracy, loss = accuracy_in(line), finite_or_none(line.get("train.loss"))
    parts = [f"round {line['round']} of {rounds}"]
    if "clients" in line:  # secret in a private run
        updates = len(line["clients"]) - len(line["rejected"])
        parts[0] += f": {updates} update{'s' if updates != 1 else ''}"
    parts += [f"training loss {loss:.4f}"] if loss is not None else []
    parts += [f"accuracy {100 * accuracy:.1f} %"] if accuracy is not None else []
    return ", ".join(parts)


def display_for(label: str, rounds: int, quiet: bool, as_json: bool) -> Display:
    """The display for these options and this terminal."""
    if as_json:
        return JsonDisplay()
    if quiet or not Console(stderr=True).is_terminal:
        return LineDisplay(rounds, quiet)
    return LiveTable(label, rounds)
