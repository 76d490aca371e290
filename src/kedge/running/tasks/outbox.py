"""Outbox: sends the events of a task to the driver's desk."""

import threading
from types import TracebackType
from typing import Any, Self

from kedge.running.tasks.events import Event, Line

SECONDS = 0.2  # between two messages


class Outbox:
    """Sends events in a thread, a few times in a second, and receives the request to stop.

    The task calls `add` from any of its threads, and `must_stop` after each round. The context sends the
    first events at its start, so that a stopped task never trains, and the last events at its end.
    """

    def __init__(self, ray: Any, desk: Any) -> None:
        self.ray, self.desk = ray, desk
        self.events: list[Event] = []
        self.lines: dict[int, Line] = {}  # the newest of each run
        self.lock = threading.Lock()
        self.ending, self.stopping = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.send_repeatedly, name="kedge-outbox", daemon=True)

    def __enter__(self) -> Self:
        self.send()
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self.thread.join()
        self.send()

    def add(self, event: Event) -> None:
        """Send an event soon; of the lines of a run only the newest is sent."""
        with self.lock:
            if isinstance(event, Line):
                self.lines[event.run] = event
            else:
                self.events.append(event)

    def must_stop(self) -> bool:
        """Whether the runs must stop after their current rounds."""
        return self.stopping.is_set()

    def send_repeatedly(self) -> None:
        """Send the events until the context ends; the target of the thread."""
        while not self.ending.wait(SECONDS):
            self.send()

    def send(self) -> None:
        """Send all events, and receive the request to stop."""
        with self.lock:
            events: list[Event] = [*self.lines.values(), *self.events]
            self.events, self.lines = [], {}
        if self.ray.get(self.desk.report.remote(events)):
            self.stopping.set()
