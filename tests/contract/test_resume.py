"""A run of two stages resumes to the last byte of the model and the history."""

from pathlib import Path

import pytest
from tests.contract.problem import federation, network
from tests.contract.resuming import LOCAL, PARTICIPATION, assert_resume_is_exact

from kedge.algorithms import fedavg, feddyn
from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.engines.sequential import Sequential


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_of_two_stages_resumes_before_at_and_after_the_switch(after: int, tmp_path: Path) -> None:
    stages = (Stage(feddyn(0.1), 2, LOCAL), Stage(fedavg(), 2, LOCAL))
    assert_resume_is_exact(
        Task(stages, network("group"), federation(), PARTICIPATION), Sequential, tmp_path, after
    )
