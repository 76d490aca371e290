"""Events: the reports of a task while it trains, and the actor through which the driver receives them."""

import pickle
from typing import Any, NamedTuple

from kedge.running.progress_bar import accuracy_in
from kedge.running.requests import Outcome, RunRequest


class Started(NamedTuple):
    """A task has started to train a job."""

    job: int


class Line(NamedTuple):
    """The newest line in the history of a run; `run` is its number in the command."""

    run: int
    round: int
    accuracy: float | None
    samples_per_second: float


class Message(NamedTuple):
    """A message for the user."""

    text: str


class Ended(NamedTuple):
    """The end of a run: its error as text (empty: it finished), and pickled."""

    run: int
    text: str = ""
    error: bytes = b""
    trace: str = ""
    out_of_memory: bool = False

    def outcome(self, request: RunRequest) -> Outcome:
        """The outcome of the run of this request."""
        return Outcome(request, self.exception() if self.text else None, self.trace, self.out_of_memory)

    def exception(self) -> Exception:
        """The error, or a RuntimeError with its text if this process cannot load it."""
        try:
            error = pickle.loads(self.error)
        except Exception:  # an error of a class of the user's code, which only the worker has imported
            error = None
        return error if isinstance(error, Exception) else RuntimeError(self.text)


class JobEnd(NamedTuple):
    """The result of a task: the ends of its runs; runs without one were stopped."""

    ends: list[Ended]


Event = Started | Line | Message | Ended


def end_event(run: int, outcome: Outcome) -> Ended:
    """The event of an outcome."""
    error = outcome.error
    if error is None:
        return Ended(run)
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # the driver then uses the text
        pickled = b""
    text = f"{type(error).__name__}: {error}"
    return Ended(run, text, pickled, outcome.trace, outcome.out_of_memory)


def line_of(run: int, values: dict[str, Any]) -> Line:
    """The event of a line of a history."""
    return Line(run, values["round"], accuracy_in(values), values["time"]["samples_per_second"])


class Desk:
    """An actor that keeps the events of all tasks until the driver takes them, and the request to stop.

    Tasks call `report`, the driver calls `take`. An actor that is lost starts again without its events; the
    result of a task has the ends of its runs once more.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stopping = False

    def report(self, events: list[Event]) -> bool:
        """Keep these events; return whether the runs must stop."""
        self.events += events
        return self.stopping

    def take(self, stopping: bool) -> list[Event]:
        """All events since the last call; `stopping`: the runs must stop after their current rounds."""
        self.stopping = stopping
        taken, self.events = self.events, []
        return taken
