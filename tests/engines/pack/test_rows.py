"""A pack compiles for few numbers of rows, however many clients join by chance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.pack.test_pack import state, task_of
from tests.engines.recorded import on_the_cpu

from kedge.algorithms import fedavg
from kedge.core.client import Carry
from kedge.core.sampling import Participation
from kedge.engines.cuda.captured import Captured, captured_stack
from kedge.engines.pack.pack import Pack
from kedge.engines.pack.rows import FORESEEN, RowCounts
from kedge.engines.stack.planner import Participants
from kedge.engines.stack.stacked import Stacked
from kedge.running.progress import Progress
from kedge.running.runner import rounds, run


def participants_of(counts: Sequence[int]) -> Participants:
    """Clients of the rounds by number; no clients are known if there are no counts."""
    return lambda round: range(counts[round % len(counts)]) if counts else ()


def test_most_rounds_fit_into_the_usual_number() -> None:
    counts = [20] * (FORESEEN - 3) + [29, 30, 31]  # three of 75 rounds are larger
    rows = RowCounts([participants_of(counts)])
    assert rows.usual_rows([0]) == 20
    assert [rows.padded("a", [0], count) for count in (20, 13, 5)] == [20, 20, 20]
    assert rows.limit("a", [0]) == 20


def test_equal_rounds_are_not_padded() -> None:
    rows = RowCounts([participants_of([7]), participants_of([6])])
    assert rows.padded("a", [0, 1], 13) == 13


def test_unknown_rounds_take_what_suffices_for_their_own() -> None:
    rows = RowCounts([participants_of([])])
    assert rows.limit("a", [0]) > 10**6
    assert rows.padded("a", [0], 13) >= 13
    assert rows.padded("a", [0], 11) == rows.padded("a", [0], 13)


def test_a_stack_three_times_too_large_is_not_used() -> None:
    rows = RowCounts([participants_of([40]), participants_of([4])])
    assert rows.padded("a", [0, 1], 44) == 44
    assert rows.padded("a", [1], 4) == 4


def test_more_runs_have_a_stack_of_their_own_size() -> None:
    rows = RowCounts([participants_of([10])] * 8)
    assert rows.limit("a", [0, 1]) == 20
    assert rows.limit("a", range(8)) == 80


def test_memory_limits_the_number() -> None:
    rows = RowCounts([participants_of([10])] * 4)
    assert rows.limit("a", range(4)) == 40
    rows.halve(40)
    assert rows.limited
    assert rows.limit("a", range(4)) == 20
    assert rows.padded("a", [0, 1], 20) == 20
    assert rows.compiled_sizes["a"] == [20]


@pytest.mark.slow
@pytest.mark.parametrize("usual", [None, 4])
def test_runs_with_random_participation_compile_once(
    usual: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where more clients join than the stack has rows for; every run ends as it would alone."""
    chance = Participation("bernoulli", share=0.5)
    tasks = [replace(task_of(fedavg(), seed, rounds=6), participation=chance) for seed in range(4)]
    if usual:
        monkeypatch.setattr(RowCounts, "usual_rows", lambda self, runs: usual * len(runs))
    widths: list[int] = []
    run_steps = Captured.run_steps

    def counted(self: Captured, *given: Any) -> Carry:
        start = given[3]
        if start.per_row:  # not fine-tuning, which is per run
            widths.append(len(start.members))
        return run_steps(self, *given)

    monkeypatch.setattr(Captured, "run_steps", counted)
    with on_the_cpu():
        engines = [
            captured_stack(task.model, task.federation, participants=task.participants) for task in tasks
        ]
        pack = Pack(engines, captured_stack)
        ended: dict[int, Progress | BaseException] = {}
        pack.train_runs([rounds(t, e) for t, e in zip(tasks, engines, strict=True)], ended.__setitem__)
    packed = set(widths)
    monkeypatch.undo()
    assert len(packed) == 1, packed
    for number, task in enumerate(tasks):
        end = ended[number]
        assert isinstance(end, Progress), end
        right, left = state(run(task, Stacked(task.model, task.federation))), state(end)
        largest = max(float(v.abs().max()) for v in right.values())
        assert max(float((v - left[k]).abs().max()) for k, v in right.items()) < 1e-12 * largest
