"""The cost of each method: the time of a round as a ratio to FedAvg's, compiled and uncompiled."""

from collections.abc import Sequence
from typing import NamedTuple

from kedge.bench.candidates import Candidate
from kedge.bench.multiply_adds import multiply_adds
from kedge.bench.ratios import BASE, Ratio, Verdict, quartiles, ratios_to_base
from kedge.bench.rounds import Round, rounds_of
from kedge.bench.timing import Timing, warm_up
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked


class MethodCost(NamedTuple):
    """A row of the table."""

    method: str
    work: float | None  # multiply-adds relative to FedAvg's
    compiled: Ratio | None
    uncompiled: Ratio | None
    bound: float | None  # of the compiled ratio
    reason: str = ""  # why the row has no numbers

    @property
    def holds(self) -> Verdict | None:
        """Whether the bound holds."""
        return None if self.bound is None or self.compiled is None else self.compiled.within(self.bound)


class Warm(NamedTuple):
    """A method that is ready to be timed."""

    work: int
    uncompiled: Round
    compiled: Round | None


def method_costs(candidates: Sequence[Candidate], work: Workload, timing: Timing) -> list[MethodCost]:
    """The costs of all candidates, among them FedAvg: warm up one by one, then measure in turns."""
    warm: dict[str, Warm] = {}
    reasons: dict[str, str] = {}
    for number, candidate in enumerate(candidates, 1):
        timing.say(f"{work.name}: warming up {candidate.name} ({number} of {len(candidates)})")
        try:
            warm[candidate.name] = prepare(candidate, work, timing)
        except RequestError as error:
            reasons[candidate.name] = str(error)
    uncompiled = {name: ready.uncompiled for name, ready in warm.items()}
    compiled = {name: ready.compiled for name, ready in warm.items() if ready.compiled}
    turns, compiled_turns = [], []
    for number in range(1, timing.repeats + 1):
        timing.say(f"{work.name}: measuring, turn {number} of {timing.repeats}")
        turns.append(ratios_to_base(uncompiled, timing.device))
        if compiled:
            compiled_turns.append(ratios_to_base(compiled, timing.device))
    return [
        MethodCost(name, None, None, None, bound, reasons[name])
        if name in reasons
        else MethodCost(
            name,
            warm[name].work / warm[BASE].work,
            quartiles([turn[name] for turn in compiled_turns]) if compiled else None,
            quartiles([turn[name] for turn in turns]),
            bound,
        )
        for name, bound in ((candidate.name, candidate.bound) for candidate in candidates)
    ]


def prepare(candidate: Candidate, work: Workload, timing: Timing) -> Warm:
    """Count the multiply-adds of a method, and warm up its rounds on the stacked engine."""
    algorithm = candidate.make()
    task = work.method_task(algorithm, timing.device)
    uncompiled = warm_up(stacked_rounds(task, False), timing.device)
    compiled = warm_up(stacked_rounds(task, True), timing.device) if timing.compiled else None
    return Warm(multiply_adds(work, algorithm), uncompiled, compiled)


def stacked_rounds(task: Task, compiled: bool) -> Round:
    """Rounds of a run on the stacked engine."""
    return rounds_of(task, Stacked(task.model, task.federation, backend=Direct(compiled, task.model.half)))
