"""Groups of runs that can train in one pack, and the number of runs that fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.running.short_runs import experiment, members

from kedge.config.assemble import assemble
from kedge.running.packs.grouping import even_pack_size, groups, program_key, runs_that_fit


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 5}, {"optimizer.lr": 0.3}, {"optimizer.decay": 0.9}, {"partition.alpha": 3.0}, {"rounds": 7},
        {"partition": "iid(clients=5)"}, {"participation.per_round": 2}, {"evaluation.every": 2},
        {"evaluation.local_test": 0.5}, {"checkpoint.every": 3}, {"measure.samples": 50}, {"name": "other"},
    ],
    ids=str,
)  # fmt: skip
def test_these_may_differ_in_a_pack(settings: dict[str, Any]) -> None:
    assert program_key(experiment()) == program_key(experiment(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "feddyn"}, {"method": "fedbug+fedavg"}, {"method": "fedavg -> fedprox@2"},
        {"optimizer.momentum": 0.5}, {"optimizer.name": "adam"}, {"optimizer.weight_decay": 0.5},
        {"training.batch": 7}, {"training.epochs": 2}, {"training.augment": "flip"}, {"model.hidden": [8]},
        {"data.name": "synthetic"}, {"data.normalize": [0.5, 0.5]}, {"engine.precision": "fp64"},
        {"engine.threads": 2}, {"evaluation.all": True}, {"measure.drift": True},
    ],
    ids=str,
)  # fmt: skip
def test_these_may_not(settings: dict[str, Any]) -> None:
    assert program_key(experiment()) != program_key(experiment(**settings))


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        ("fedavg", "fedexp", True),
        ("fedavgm(beta=0.5)", "fedadam", True),
        ("fedbug(ratio=0.2) + fedavg", "fedbug(ratio=0.2) + fedexp", True),
        ("fedavg -> feddyn@2", "fedavgm -> feddyn@2", True),
        ("fedavg", "fednova", True),
        ("fedavg", "fedprox", False),
        ("feddyn(alpha=0.1)", "feddyn(alpha=0.2)", False),
        ("feddyn", "feddyn-no-reg", False),
        ("fedbug(ratio=0.2) + fedavg", "fedbug(ratio=0.4) + fedavg", False),
    ],
)
def test_methods_that_differ_on_the_server_only_train_in_one_pack(left: str, right: str, alike: bool) -> None:
    assert (program_key(experiment(method=left)) == program_key(experiment(method=right))) is alike


def test_groups_keep_the_order_and_the_engine_a_run_began_with(tmp_path: Path) -> None:
    own = [experiment(seed=n, method="fedavg" if n % 2 else "fedprox") for n in range(6)]
    some = members(tmp_path, own)
    assert [[m.folder.name for m in group] for group in groups(some)] == [
        ["run0", "run2", "run4"],
        ["run1", "run3", "run5"],
    ]
    for number, engine in ((2, "sequential"), (4, "stacked")):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        chosen = {"name": engine, "compiled": False, "chunk": 0, "threads": 1, "packed": number}
        (folder / "environment.json").write_text(json.dumps({"engine": chosen}))
    on = members(tmp_path, own, "resume")
    assert [[m.folder.name for m in group] for group in groups(on)] == [
        ["run0", "run2"],  # not started: it joins the first run that has started
        ["run4"],
        ["run1", "run3", "run5"],
    ]


def test_how_many_fit_follows_from_rows_and_memories() -> None:
    plain, remembering = (assemble(experiment(method=method)) for method in ("fedavg", "scaffold"))
    assert runs_that_fit(plain) == 8  # small: as many as pay on a CPU
    assert [runs_that_fit(plain, chunk) for chunk in (1, 3, 6, 10)] == [1, 1, 2, 3]
    size = sum(v.numel() for v in plain.model.init(0)[0].values()) * 4

    def with_room(task: Any, models: int, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr("kedge.engines.choice.capacity.LIVE_BYTES", models * size)
        return runs_that_fit(task)

    with pytest.MonkeyPatch.context() as patch:
        assert with_room(plain, 6 * 3 * 5, patch) == 5  # 3 clients a round, 6 models each while they train
        assert with_room(remembering, (6 * 3 + 6) * 5, patch) == 5  # and 6 clients that keep one
        assert with_room(remembering, (6 * 3 + 6) * 5 - 1, patch) == 4
        assert with_room(plain, 1, patch) == 1


def test_packs_are_of_equal_size() -> None:
    assert [even_pack_size(count, 8) for count in (1, 8, 9, 16, 20)] == [1, 8, 5, 8, 7]
