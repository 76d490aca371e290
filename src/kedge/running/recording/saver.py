"""When checkpoints are written: at once, or beside the run where its engine works on a device of its own.

No tensor that a checkpoint holds is ever changed in place, so a thread can copy and write it while the next
rounds train. One is written at a time; what could not be written is told at the next, or at the end.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from kedge.core.tree import flatten
from kedge.engines.cuda.host_copies import Event, copying_after, recorded_event
from kedge.running.folders import checkpoint


class Saver:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, beside: bool) -> None:
        """`beside`: write in a thread."""
        self.folder = folder
        self.thread = ThreadPoolExecutor(1, "kedge-checkpoint") if beside else None
        self.writing: Future[None] | None = None

    def save(self, number: int, state: checkpoint.State) -> None:
        """Write the state after so many rounds, or begin to."""
        self.wait()
        if self.thread is None:
            checkpoint.save(self.folder, number, state)
            return
        flat = flatten(state.tensors)  # the dicts are not the thread's: a run puts others' entries into them
        on_gpu = any(v.is_cuda for v in flat.values())
        ready = recorded_event() if on_gpu else None
        self.writing = self.thread.submit(written, self.folder, number, state._replace(tensors=flat), ready)

    def wait(self) -> None:
        """Until the last one stands; its error, if it does not."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()


def written(folder: Path, number: int, state: checkpoint.State, ready: Event | None) -> None:
    """Write a version, in a thread; what is on a GPU is copied beside what that does next."""
    with copying_after(ready) if ready else nullcontext():
        checkpoint.save(folder, number, state)
