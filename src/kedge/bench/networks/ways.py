"""The ways to train a setting: plain loop, stack, captured graphs, compiled central training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kedge.bench.loops import plain_loop
from kedge.bench.networks.central import compiled_central
from kedge.bench.networks.setting import BATCH, Setting
from kedge.bench.rounds import Round, rounds_of
from kedge.config.task import Task
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Engine
from kedge.engines.stack.programs import bucket
from kedge.engines.stack.stacked import Stacked
from kedge.nn.precision import Precision

PLAIN, CENTRAL = "plain loop", "central, compiled"


class Way(NamedTuple):
    """One way to train a setting; `make` returns its rounds."""

    setting: Setting
    how: str
    precision: Precision
    make: Callable[[], Round]
    streams: int | None = None  # of captured graphs

    @property
    def key(self) -> tuple[str, Precision]:
        """The name of the way within its setting."""
        return self.how, self.precision

    @property
    def about(self) -> str:
        """The setting, for messages."""
        return f"{self.setting.network}, {self.setting.clients} clients"


def ways(
    setting: Setting, precisions: Sequence[Precision], device: str, eager: bool, streams: Sequence[int] = (1,)
) -> list[Way]:
    """All ways to train a setting; with `eager` also the plain loop and, on a GPU, the uncompiled stack."""
    data, on_gpu = setting.federation(device), device == "cuda"
    listed = []
    if eager:
        listed.append(Way(setting, PLAIN, "fp32", lambda: plain_loop(setting.work(), normalized(data))))
    if eager or not on_gpu:
        task = setting.task(data, "fp32")
        listed.append(Way(setting, "stacked", "fp32", partial(engine_rounds, task, stacked_engine)))
    for precision in precisions:
        for count in dividing(streams, setting.clients) if on_gpu else []:
            how = "captured" if count == 1 else f"captured, {count} streams"
            task, engine = setting.task(data, precision), partial(captured_engine, streams=count)
            listed.append(Way(setting, how, precision, partial(engine_rounds, task, engine), count))
        task = setting.task(data, precision)
        listed.append(Way(setting, CENTRAL, precision, partial(central_rounds, task, setting)))
    return listed


def engine_rounds(task: Task, make: Callable[[Task], Engine]) -> Round:
    """Rounds of a run on a new engine."""
    return rounds_of(task, make(task))


def central_rounds(task: Task, setting: Setting) -> Round:
    """Rounds of central training, with the batches of all clients as one."""
    local = task.stages[0].local
    return compiled_central(task.model, local, task.federation, setting.clients * BATCH, setting.steps)


def dividing(streams: Sequence[int], clients: int) -> list[int]:
    """The numbers of streams that divide the rows of a stack of `clients` clients."""
    return [count for count in streams if bucket(clients) % count == 0]


def stacked_engine(task: Task) -> Engine:
    """The stacked engine without compiling."""
    return Stacked(task.model, task.federation)


def captured_engine(task: Task, streams: int = 1) -> Engine:
    """The stacked engine with captured graphs."""
    return captured_stack(task.model, task.federation, participants=task.participants, streams=streams)


def normalized(data: Federation) -> Federation:
    """The data with normalized float images, as a data loader of a plain loop yields them."""
    pool = Dataset(data.prepare(data.pool.x), data.pool.y)
    return replace(data, pool=pool, scale=1.0)
