"""The planner: batches of a round that is known ahead are drawn once, in the thread."""

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.cuda.test_captured import captured, task_of
from tests.engines.recorded import on_the_cpu

from kedge.algorithms import fedavg
from kedge.data.batches import Plan
from kedge.engines.stack.planner import Planner
from kedge.running.runner import run


@pytest.mark.parametrize("chunk", [0, 2, 1])
def test_batches_of_every_chunk_are_drawn_once_and_one_round_ahead(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: Counter[tuple[int, tuple[int, ...]]] = Counter()
    late: set[int] = set()  # rounds with batches that the training thread drew
    draw, training = Planner.draw, threading.current_thread()

    def counted(self: Planner, stage: Any, model: Any, rows: Any, tuning: bool = False) -> Plan:
        if not tuning:
            drawn[rows.order.round, tuple(rows.clients)] += 1
            if threading.current_thread() is training:
                late.add(rows.order.round)
        return draw(self, stage, model, rows, tuning)

    monkeypatch.setattr(Planner, "draw", counted)
    task = replace(task_of(fedavg(), "cpu", network="mlp"), tune="off")
    with on_the_cpu():
        run(task, captured(task, chunk))
    assert set(drawn.values()) == {1}
    assert late == {0}
