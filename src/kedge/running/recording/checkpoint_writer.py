"""CheckpointWriter: writes the checkpoints of a run, in a thread if the engine can overlap work.

No tensor of a checkpoint is ever changed in place, so the thread can copy and write it while the next rounds
train. One checkpoint is written at a time. Its error is raised when the next checkpoint is due, or at the end
of the run.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from kedge.core.tree import flatten
from kedge.engines.cuda.host_copies import Event, copying_after, recorded_event
from kedge.running.folders import checkpoint


class CheckpointWriter:
    """Writes the checkpoints of one run.

    The main thread calls `save` and `wait`. If `overlap`, a thread of its own calls `write_checkpoint` for
    each saved state.
    """

    def __init__(self, folder: Path, overlap: bool) -> None:
        """If `overlap`, write in a thread."""
        self.folder = folder
        self.thread = ThreadPoolExecutor(1, "kedge-checkpoint") if overlap else None
        self.writing: Future[None] | None = None

    def save(self, number: int, state: checkpoint.State) -> None:
        """Write the state after `number` rounds, or let the thread write it; raise the last one's error."""
        self.wait()
        if self.thread is None:
            checkpoint.save(self.folder, number, state)
            return
        flat = flatten(state.tensors)  # in a new dict: the run changes its own while the thread writes
        on_gpu = any(v.is_cuda for v in flat.values())
        ready = recorded_event() if on_gpu else None
        state = state._replace(tensors=flat)
        self.writing = self.thread.submit(write_checkpoint, self.folder, number, state, ready)

    def wait(self) -> None:
        """Wait until the last checkpoint is written, and raise its error."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()


def write_checkpoint(folder: Path, number: int, state: checkpoint.State, ready: Event | None) -> None:
    """Write a checkpoint in a thread; copy from a GPU after the event `ready`, beside its other work."""
    with copying_after(ready) if ready else nullcontext():
        checkpoint.save(folder, number, state)
