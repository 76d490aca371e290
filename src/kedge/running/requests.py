"""RunRequest, a run that a command starts; Outcome, its end; Controls, shared by all runs of a command."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from kedge.config.experiment import Experiment
from kedge.core.errors import RequestError
from kedge.engines.choice.unstackable import unstackable
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.running.engine_settings import read_engine_settings
from kedge.running.folders.sources import CodeChoice

Raised = TypeVar("Raised", bound=BaseException)


class RunRequest(NamedTuple):
    """A run to train: in a new folder, in place of an existing folder, or resumed."""

    folder: Path
    experiment: Experiment
    start: Literal["new", "replace", "resume"] = "new"
    code: CodeChoice = "same"  # the version of the user's own code that a resumed run executes

    @property
    def engine_settings(self) -> dict[str, Any] | None:
        """Engine settings recorded when a resumed run first started, or None."""
        return read_engine_settings(self.folder) if self.start == "resume" else None


class Outcome(NamedTuple):
    """The end of a run: its error (None: it finished), the traceback, and whether memory ran out."""

    request: RunRequest
    error: Exception | None = None
    trace: str = ""
    out_of_memory: bool = False


class Controls(NamedTuple):
    """Progress display, messages, and the request to stop, shared by all runs of a command."""

    shown: bool | None = None  # show a progress bar; None: if standard error is a terminal
    say: Callable[[str], None] = lambda message: None
    stop: Callable[[], bool] = lambda: False
    line: Callable[[Path, dict[str, Any]], None] = lambda folder, line: None  # after each history line

    def say_beside(self, bar: Callable[[str], None]) -> Callable[[str], None]:
        """The function for messages of a run: that of its progress bar, unless no bar is shown."""
        return self.say if self.shown is False else bar


def failure(request: RunRequest, error: Exception) -> Outcome:
    """The outcome of a run that failed with `error`."""
    out_of_memory = ran_out_of_memory(error)  # before `without_frames` removes the causes
    return Outcome(request, *without_frames(error), out_of_memory)


def without_frames(error: Raised) -> tuple[Raised | RequestError, str]:
    """The error without its traceback, whose frames keep tensors alive; and the traceback as text."""
    trace = "".join(traceback.format_exception(error))
    explained = unstackable(error) or error
    explained.__cause__ = explained.__context__ = None
    return explained.with_traceback(None), trace
