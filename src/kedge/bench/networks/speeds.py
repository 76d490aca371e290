"""Speed, memory and kernels of networks with 1, 10 and 100 clients, for each way to train.

The plain loop is in fp32, and its speed does not depend on the number of clients: it is timed with about ten.
Central training is one compiled model (on a GPU captured) in the precision of the engine that it is compared
with. Profiles follow all measurements, since a profiler slows later rounds.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import torch

from kedge.bench.networks import footprint
from kedge.bench.networks.profile import Profile, profile_round
from kedge.bench.networks.setting import Setting
from kedge.bench.networks.ways import CENTRAL, PLAIN, Way, ways
from kedge.bench.rounds import Round
from kedge.bench.timing import WARM_UP_ROUNDS, Timing, median_ratio, synchronize
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.nn.precision import Precision, computing_in

USUAL_CLIENTS = 10  # of the setting with the plain loop
Speeds = dict[tuple[str, Precision], list[float]]  # samples per second of each turn, by Way.key


class NetworkSpeed(NamedTuple):
    """The speed of one way to train a setting."""

    network: str
    clients: int
    how: str
    precision: Precision
    streams: int | None  # of captured graphs
    samples_per_second: float
    to_plain: float | None  # the plain loop in fp32
    to_central: float | None  # in the same precision
    memory: int | None  # bytes at the peak, without the data
    first_round_seconds: float


class Warm(NamedTuple):
    """A way that is ready to be timed."""

    way: Way
    round: Round
    first_round_seconds: float
    memory: int | None


@dataclass
class NetworkBench:
    """Times the ways to train each setting, then profiles them. `rows` are the results so far."""

    settings: Sequence[Setting]
    precisions: Sequence[Precision]
    timing: Timing
    streams: Sequence[int] = (1,)
    rows: list[NetworkSpeed] = field(default_factory=list)
    warm: list[Warm] = field(default_factory=list)  # ways of the present setting; too large to keep all

    def speeds(self) -> Iterator[list[NetworkSpeed]]:
        """Time the settings one after another, and yield the rows of each."""
        for setting in self.in_order():
            self.warm_up(setting)
            if self.warm:
                rows = self.time_in_turns()
                self.rows += rows
                yield rows

    def profiles(self) -> Iterator[Profile]:
        """Profile a round of each way, after `speeds`. The setting that was timed last is still warm."""
        *others, last = self.in_order()
        for setting in (last, *others):
            if setting is not last:
                self.warm_up(setting)
            # No variable of this function refers to a way: its memory is needed for the next setting.
            yield from (profile_way(warm, self.timing) for warm in self.warm)

    def in_order(self) -> list[Setting]:
        """The settings: first the setting of each network that has the plain loop."""
        return sorted(self.settings, key=lambda setting: not self.has_plain_loop(setting))

    def has_plain_loop(self, setting: Setting) -> bool:
        """Whether the plain loop is timed in this setting, whose clients are nearest to USUAL_CLIENTS."""
        same_network = [other for other in self.settings if other.network == setting.network]
        return setting is min(same_network, key=lambda other: abs(other.clients - USUAL_CLIENTS))

    def sorted_rows(self) -> list[NetworkSpeed]:
        """The rows in the order of `settings`."""
        positions = {(setting.network, setting.clients): n for n, setting in enumerate(self.settings)}
        return sorted(self.rows, key=lambda row: positions[row.network, row.clients])

    def warm_up(self, setting: Setting) -> None:
        """Free the present ways, and warm up all ways of a setting that fit into memory."""
        self.warm.clear()
        free_memory()
        timing, eager = self.timing, self.has_plain_loop(setting)
        for way in ways(setting, self.precisions, timing.device, eager, self.streams):
            if warm := warm_up_if_it_fits(way, self.rows, timing):
                self.warm.append(warm)

    def time_in_turns(self) -> list[NetworkSpeed]:
        """Time the warm ways in turns."""
        about = self.warm[0].way.about
        speeds: Speeds = {warm.way.key: [] for warm in self.warm}
        for turn in range(self.timing.repeats):
            self.timing.say(f"{about}: measuring, turn {turn + 1} of {self.timing.repeats}")
            for warm in self.warm:
                speeds[warm.way.key].append(round_speed(warm, WARM_UP_ROUNDS + turn, self.timing.device))
        return [self.row(warm, speeds) for warm in self.warm]

    def row(self, warm: Warm, speeds: Speeds) -> NetworkSpeed:
        """The row of a way; ratios are taken within each turn, or to an earlier plain loop's median."""
        way, by_turn = warm.way, speeds[warm.way.key]
        to_plain = median_ratio(by_turn, speeds.get((PLAIN, "fp32"), []))
        if to_plain is None and (plain := self.plain_speed(way.setting.network)):
            to_plain = median(by_turn) / plain
        return NetworkSpeed(
            way.setting.network,
            way.setting.clients,
            way.how,
            way.precision,
            way.streams,
            median(by_turn),
            to_plain,
            median_ratio(by_turn, speeds.get((CENTRAL, way.precision), [])),
            warm.memory,
            warm.first_round_seconds,
        )

    def plain_speed(self, network: str) -> float | None:
        """Samples per second of a network's plain loop, if it was timed in another setting."""
        plain_rows = (row for row in self.rows if (row.network, row.how) == (network, PLAIN))
        return next((row.samples_per_second for row in plain_rows), None)


def round_speed(warm: Warm, number: int, device: str) -> float:
    """Samples per second of one round."""
    with computing_in(warm.way.precision):
        start = time.perf_counter()
        samples = warm.round(number)
        synchronize(device)
    return samples / (time.perf_counter() - start)


def warm_up_if_it_fits(way: Way, rows: Sequence[NetworkSpeed], timing: Timing) -> Warm | None:
    """Warm up a way. If it does not fit into memory beside the warm ways, print a message and return None."""
    needed, free = expected_memory(way, rows), footprint.free_bytes(timing.device)
    if free is not None and needed > free:  # the kernel would end a process on a CPU without an exception
        reason = f"would need about {needed / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
    else:
        try:
            return warm_up_way(way, timing)
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            reason = "out of memory beside the others"
    free_memory()
    timing.say(f"{way.about}: {reason}, left out: {way.how}, {way.precision}")
    return None


def expected_memory(way: Way, rows: Sequence[NetworkSpeed]) -> float:
    """Bytes that a way needs, extrapolated from its row with the most clients; 0 without a row."""
    name = way.setting.network, way.how, way.precision
    memory = {row.clients: row.memory or 0 for row in rows if (row.network, row.how, row.precision) == name}
    most_clients = max(memory, default=0)
    return way.setting.clients / most_clients * memory[most_clients] if most_clients else 0


def warm_up_way(way: Way, timing: Timing) -> Warm:
    """Make the rounds of a way and train the first of them; measure time and memory."""
    device = timing.device
    timing.say(f"{way.about}: warming up {way.how}, {way.precision}")
    before = footprint.start_watch(device)
    start = time.perf_counter()
    with computing_in(way.precision):
        round = way.make()
        round(0)
        synchronize(device)
        seconds = time.perf_counter() - start
        round(1)
    synchronize(device)
    return Warm(way, round, seconds, footprint.growth(device, before))


def profile_way(warm: Warm, timing: Timing) -> Profile:
    """Profile one round of a way."""
    setting, how, precision = warm.way[:3]
    timing.say(f"{warm.way.about}: profiling {how}, {precision}")
    with computing_in(precision):
        kernels = profile_round(warm.round, timing.device, setting.steps)
    return Profile(setting.network, setting.clients, how, precision, setting.steps, kernels)


def free_memory() -> None:
    """Free the memory of dropped objects."""
    gc.collect()
    torch.cuda.empty_cache()
