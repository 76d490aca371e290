"""Every table of the papers trains: two rounds of each method, schedule and model on synthetic data."""

import json
from pathlib import Path

import pytest
from tests.cli.command import kedge

from kedge.reproduce.paper import names
from kedge.reproduce.plan import one_run_per_program, runs_of, table_of


@pytest.mark.slow
def test_all_tables_train_on_made_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = kedge("reproduce", "all", "--scale", "smoke", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    every = [run for name in names() for run in runs_of(table_of(name, {}), "smoke", [0], tmp_path)]
    assert told["tables"] == names()
    assert (told["failed"], told["trained"], told["resolved"]) == (
        0,
        len(one_run_per_program(every)),
        len(every),
    )
    assert not list(tmp_path.iterdir())
