"""Networks at one, ten and a hundred clients: each engine beside the plain loop and central training.

The plain loop is eager and in fp32; its speed does not depend on the number of clients, so it is timed with
ten. Central training is one compiled model (on a GPU captured) with a batch of all clients' batches together,
in the precision of the engine it is compared with. Profiles are taken last: a profiler slows the rest.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from kedge.algorithms import fedavg
from kedge.bench import footprint
from kedge.bench.bench import rounds_of, synchronize
from kedge.bench.central import compiled_central
from kedge.bench.loops import Round, plain_loop
from kedge.bench.profile import Profile, by_kernel
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Engine
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.engines.programs import bucket
from kedge.engines.stacked import Stacked
from kedge.nn.from_module import from_module
from kedge.nn.precision import DTYPES, Precision, computing_in, in_precision

POOL = 50_000  # images, uint8, shared by all clients
BATCH = 50
NETWORKS = {"standard-cnn": 10, "resnet18": 100, "resnet20": 10}  # and their classes


@dataclass(frozen=True)
class Setting:
    """One network and so many clients a round."""

    network: str
    clients: int
    steps: int  # local steps of each client a round

    def work(self) -> Workload:
        """The same for the plain loop."""
        about = f"{self.clients} clients, {self.steps} local steps, batch {BATCH}"
        return Workload(
            self.network, about, self.network, (3, 32, 32), self.clients, self.clients,
            self.steps * BATCH, BATCH, True, NETWORKS[self.network],
        )  # fmt: skip

    def federation(self, device: str) -> Federation:
        """Random images; clients draw theirs from one pool, as uint8."""
        make = np.random.default_rng(0)
        count = POOL if device == "cuda" else 2000
        x = torch.from_numpy(make.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))
        y = torch.from_numpy(make.integers(0, NETWORKS[self.network], count))
        shares = tuple(make.integers(0, count, self.steps * BATCH) for _ in range(self.clients))
        none = (np.empty(0, dtype=np.int64),) * self.clients
        pool = Dataset(x, y)
        return Federation(pool, shares, none, None, NETWORKS[self.network], scale=1 / 255).to(
            device, torch.float32
        )

    def task(
        self, data: Federation, precision: Precision, algorithm: Algorithm | None = None, seed: int = 0
    ) -> Task:
        """A run on these data; its steps are so short that nothing diverges."""
        work = self.work()
        return Task(
            (Stage(algorithm or fedavg(), 1, replace(work.local(), optimizer=SGD(1e-3, weight_decay=1e-3))),),
            in_precision(from_module(work.module(seed)), precision),
            replace(data, dtype=DTYPES[precision]),
            Participation(per_round=self.clients),
            seed,
            precision=precision,
        )


class Speed(NamedTuple):
    """One way to train one network."""

    network: str
    clients: int
    how: str
    precision: Precision
    streams: int | None  # of a captured engine
    samples_per_second: float
    to_plain: float | None  # the eager loop in fp32
    to_central: float | None  # in the same precision
    memory: int | None  # bytes beside the data, most at any time
    first_round_seconds: float


class Way(NamedTuple):
    """Something to be timed."""

    setting: Setting
    how: str
    precision: Precision
    make: Callable[[], Round]
    streams: int | None = None


class Warm(NamedTuple):
    """A way with two rounds behind it."""

    way: Way
    round: Round
    first: float  # seconds of the first round
    memory: int | None


def speeds(
    settings: Sequence[Setting],
    precisions: Sequence[Precision],
    device: str,
    repeats: int = 5,
    say: Callable[[str], None] = lambda message: None,
    streams: Sequence[int] = (1,),
    look: Callable[[Profile], None] | None = None,
    done: Callable[[list[Speed]], None] = lambda rows: None,
) -> list[Speed]:
    """The rows; `done` is given those of a setting as soon as they are there.

    `look`: it is also given a profile of each, when all have been timed.
    """
    rows: list[Speed] = []
    plain: dict[str, float] = {}  # samples a second of each network's plain loop
    order = list(settings)
    groups = sorted(order, key=lambda one: one is not usual(order, one.network))
    # What was timed last is still warm; the others must be made again, all at once are too large.
    work = [(one, True, bool(look) and one is groups[-1]) for one in groups]
    work += [(one, False, True) for one in groups[:-1] if look]
    for setting, time_it, profile_it in work:
        every = ways(setting, precisions, device, setting is usual(order, setting.network), streams)
        warm = [one for way in every if (one := if_it_fits(way, device, say, rows))]
        if time_it and warm:
            rows += (own := timed(warm, device, repeats, say, plain.get(setting.network)))
            plain |= {one.network: one.samples_per_second for one in own if one.how == "plain loop"}
            done(own)
        if look and profile_it:
            for seen in [profiled(one, device, say) for one in warm]:
                look(seen)
        del every, warm
        gc.collect()
        torch.cuda.empty_cache()
    places = {(one.network, one.clients): number for number, one in enumerate(order)}
    return sorted(rows, key=lambda row: places[row.network, row.clients])


def usual(settings: Sequence[Setting], network: str) -> Setting:
    """The setting of a network that comes first, with the plain loop: the nearest to ten clients."""
    some = [one for one in settings if one.network == network]
    return min(some, key=lambda one: abs(one.clients - 10))


def ways(
    setting: Setting, precisions: Sequence[Precision], device: str, eager: bool, streams: Sequence[int] = (1,)
) -> list[Way]:
    """How a setting can be trained here; `eager`: also by the plain loop and, on a GPU, the plain stack."""
    work, data = setting.work(), setting.federation(device)

    def engine(kind: Callable[[Task], Engine], precision: Precision) -> Callable[[], Round]:
        whole = setting.task(data, precision)
        return lambda: rounds_of(whole, kind(whole))

    def together(precision: Precision) -> Callable[[], Round]:
        whole = setting.task(data, precision)
        return lambda: compiled_central(
            whole.model, whole.stages[0].local, whole.federation, setting.clients * BATCH, setting.steps
        )

    found = []
    if eager:
        found.append(Way(setting, "plain loop", "fp32", lambda: plain_loop(work, prepared(data))))
    if eager or device != "cuda":
        found.append(Way(setting, "stacked", "fp32", engine(stacked, "fp32")))
    for precision in precisions:
        for count in fitting(streams, setting.clients) if device == "cuda" else []:
            how = "captured" if count == 1 else f"captured, {count} streams"
            make = engine(partial(replaying, streams=count), precision)
            found.append(Way(setting, how, precision, make, count))
        found.append(Way(setting, "central, compiled", precision, together(precision)))
    return found


def fitting(streams: Sequence[int], clients: int) -> list[int]:
    """Those numbers of streams into which the rows of so many clients can be split."""
    return [count for count in streams if bucket(clients) % count == 0]


def stacked(task: Task) -> Engine:
    """The stack without compiling."""
    return Stacked(task.model, task.federation)


def replaying(task: Task, streams: int = 1) -> Engine:
    """The stack from captured graphs."""
    return captured_stack(task.model, task.federation, participants=task.takes_part, streams=streams)


def prepared(data: Federation) -> Federation:
    """The same with normalised images, as a plain loop's loader gives them."""
    pool = Dataset(data.prepare(data.pool.x), data.pool.y)
    return replace(data, pool=pool, scale=1.0)


def warmed(way: Way, device: str, say: Callable[[str], None]) -> Warm:
    """The way after two rounds."""
    say(f"{way.setting.network}, {way.setting.clients} clients: warming up {way.how}, {way.precision}")
    before = footprint.watched(device)
    start = time.perf_counter()
    with computing_in(way.precision):
        one = way.make()
        one(0)
        synchronize(device)
        first = time.perf_counter() - start
        one(1)
    synchronize(device)
    return Warm(way, one, first, footprint.most(device, before))


def if_it_fits(way: Way, device: str, say: Callable[[str], None], rows: Sequence[Speed]) -> Warm | None:
    """The way after two rounds, or nothing, which is said, where memory runs out beside the others."""
    why = "out of memory beside the others"
    need, room = expected(way, rows), footprint.free(device)
    if room is not None and need > room:  # a GPU says when it is full; a CPU's process would be killed
        why = f"would need about {need / 1e9:.0f} GB of memory, {room / 1e9:.0f} are free"
    else:
        try:
            return warmed(way, device, say)
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
    gc.collect()
    torch.cuda.empty_cache()
    say(f"{way.setting.network}, {way.setting.clients} clients: {why}, left out: {way.how}, {way.precision}")
    return None


def expected(way: Way, rows: Sequence[Speed]) -> float:
    """The memory of a way, by its row of the most clients so far (of few, most is fixed); or 0."""
    name = way.setting.network, way.how, way.precision
    same = {one.clients: one.memory or 0 for one in rows if (one.network, one.how, one.precision) == name}
    return way.setting.clients / max(same) * same[max(same)] if same else 0


def profiled(warm: Warm, device: str, say: Callable[[str], None]) -> Profile:
    """What one more round is made of."""
    setting, how, precision, *_ = warm.way
    say(f"{setting.network}, {setting.clients} clients: profiling {how}, {precision}")
    with computing_in(precision):
        kernels = by_kernel(warm.round, device, setting.steps)
    return Profile(setting.network, setting.clients, how, precision, setting.steps, kernels)


def timed(
    warm: Sequence[Warm],
    device: str,
    repeats: int,
    say: Callable[[str], None],
    plain: float | None = None,
) -> list[Speed]:
    """Measured in turns; medians, and ratios within a turn; to the plain loop's median if it is not here."""
    ways = [one.way for one in warm]
    taken: list[list[float]] = [[] for _ in ways]
    for turn in range(repeats):
        about = f"{ways[0].setting.network}, {ways[0].setting.clients} clients"
        say(f"{about}: measuring, turn {turn + 1} of {repeats}")
        for number, one in enumerate(warm):
            with computing_in(one.way.precision):
                start = time.perf_counter()
                samples = one.round(turn + 2)
                synchronize(device)
            taken[number].append(samples / (time.perf_counter() - start))

    def ratio(number: int, how: str, precision: Precision) -> float | None:
        for other, way in enumerate(ways):
            if (way.how, way.precision) == (how, precision):
                return median(a / b for a, b in zip(taken[number], taken[other], strict=True))
        return median(taken[number]) / plain if plain and how == "plain loop" else None

    return [
        Speed(
            way.setting.network, way.setting.clients, way.how, way.precision, way.streams,
            median(taken[number]), ratio(number, "plain loop", "fp32"),
            ratio(number, "central, compiled", way.precision), warm[number].memory, warm[number].first,
        )
        for number, way in enumerate(ways)
    ]  # fmt: skip
