"""The evaluation matrix in a terminal: it fits, marks the cells of papers, and marks incomplete values."""

import itertools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from kedge.core.errors import RequestError
from kedge.measure.cells import cell_summary, matrix_order
from kedge.report.runs import Run, metric_of, read_run
from kedge.report.tables.comparison import comparison
from kedge.report.tables.matrix import cell_notes, matrix_tables, metric_notes

CELLS = (
    "distributed.global",
    "distributed.local",
    "average.global",
    "average.local",
    "all.global",
    "all.local",
)
NUMBER = itertools.count()


def a_run(method: str = "fedavg", seed: int = 0, rounds: int = 3, name: str = "", **values: Any) -> Run:
    """A run with these values in its last round; a name has _ for each dot of its cell."""
    cells = {k.replace("_", "."): v for k, v in values.items()}
    lines: list[dict[str, Any]] = [
        {"round": t, "method": method, "train.loss": 1.0} for t in range(1, rounds + 1)
    ]
    for line in lines:
        line |= {cell: value - 0.1 * (rounds - line["round"]) for cell, value in cells.items()}
    folder = Path(name or f"{method}-{seed}-{next(NUMBER)}")
    return Run(folder, {"method": method, "seed": seed, "rounds": rounds}, lines)


def full(method: str, seed: int = 0) -> Run:
    extra = {"personal.local.accuracy": 0.8, "personal.local.accuracy.tuned": 0.9, "personal.local.loss": 0.3}
    values = {f"{cell}.accuracy": 0.5 + 0.01 * seed + 0.001 * n for n, cell in enumerate(CELLS)} | extra
    written: dict[str, Any] = {k.replace(".", "_"): v for k, v in values.items()}
    return a_run(method, seed, **written)


def text(rows: list[dict[str, Any]], width: int, which: Any = "last") -> list[str]:
    out = Console(width=width, record=True, file=StringIO())
    out.print(*matrix_tables(rows, width, which))
    return [line.rstrip() for line in out.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("seeds", [1, 3])
def test_no_line_is_wider_than_the_terminal_and_no_value_is_lost(width: int, seeds: int) -> None:
    methods = [
        "fedavg",
        "fedbug+feddyn",
        "a-method-with-a-name-so-long-that-it-is-cut-somewhere-in-its-middle",
    ]
    rows = comparison([full(method, seed) for method in methods for seed in range(seeds)])
    lines = text(rows, width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    for row in rows:
        for cell in row["cells"].values():
            assert f"{100 * cell['last']:.2f}" in shown
    assert ("±" in shown) == (seeds > 1)


def test_the_columns_are_in_the_order_of_the_matrix() -> None:
    lines = text(comparison([full("fedavg")]), 140)
    assert lines[0].split() == ["method", "distributed", "average", "all", "personal"]
    assert lines[1].split() == ["global", "local"] * 3 + ["local", "local"]
    assert lines[2].split() == ["tuned"]
    ordered = ["all.global.accuracy", "view.local.accuracy", "personal.local.accuracy"]
    ordered += ["personal.local.accuracy.unseen", "personal.local.accuracy.tuned", "distributed.global.loss"]
    assert matrix_order(["train.loss", "all.global.accuracy", *reversed(ordered)]) == ordered


def test_a_star_stands_at_what_the_paper_reports() -> None:
    rows = comparison([full(m) for m in ("fedbabu", "fedbug+fedavg", "feddyn", "feddyn->fedavg", "own")])
    starred = {line.split()[0]: line.split() for line in text(rows, 140)[3:]}
    assert [word for word in starred["fedbabu"] if "*" in word] == ["90.00*"]
    assert [word for word in starred["fedbug+fedavg"] if "*" in word] == ["50.40*"]
    assert [word for word in starred["feddyn"] if "*" in word] == ["50.20*"]
    assert [word for word in starred["feddyn->fedavg"] if "*" in word] == ["50.00*"]
    assert not [word for word in starred["own"] if "*" in word]
    (note,) = cell_notes(rows)
    assert note.startswith("* the accuracy that its paper reports — fedbabu: personal.local.accuracy.tuned; ")
    assert "own" not in note


def test_best_values_are_those_of_each_cell_s_best_round() -> None:
    run = a_run(distributed_global_accuracy=0.5)
    run.history[0]["distributed.global.accuracy"] = 0.9
    row = comparison([run])[0]
    assert (row["cells"]["distributed.global.accuracy"]["last"], row["best"]) == (0.5, 0.9)
    assert cell_summary(run.history, "distributed.global.accuracy").best_round == 1
    assert "90.00*" in text([row], 80, "best")[-1]
    assert "50.00*" in text([row], 80)[-1]


def test_what_is_not_of_every_run_s_last_evaluation_stands_in_parentheses() -> None:
    """One value is from a round before the last evaluation, one from only one of two seeds."""
    early = a_run("feddyn", distributed_global_accuracy=0.6, personal_local_accuracy_tuned=0.7)
    del early.history[-1]["personal.local.accuracy.tuned"]
    some = [
        a_run("scaffold", 0, distributed_global_accuracy=0.6, all_global_accuracy=0.5),
        a_run("scaffold", 1, distributed_global_accuracy=0.8),
    ]
    rows = comparison([early, *some])
    lines = text(rows, 100)
    assert "(60.00)" in lines[-2]
    assert "70.00 ± 14.14" in lines[-1]
    assert "(50.00)" in lines[-1]
    assert "not every run has it" in cell_notes(rows)[-1]
    rows = comparison([early, *some], metric="all.global.accuracy")
    assert [row["accuracy"] for row in rows] == [None, 0.5]
    assert [row["partial"] for row in rows] == [False, True]
    assert any("not every run" in note for note in metric_notes(rows))


def test_seen_and_unseen_have_columns_while_some_are_unseen_at_the_end() -> None:
    run = full("fedper")
    for line in run.history:
        line |= {"personal.local.accuracy.seen": 0.8, "personal.local.accuracy.unseen": 0.1}
    assert "unseen" in " ".join(text(comparison([run]), 140))
    for name in ("seen", "unseen"):
        del run.history[-1][f"personal.local.accuracy.{name}"]
    again = Run(run.folder, run.config, run.history)
    assert "seen" not in " ".join(text(comparison([again]), 140))


def test_one_metric_for_all_runs_of_a_table() -> None:
    """A run with local tests only and a run with both tests are compared on the local tests."""
    both, local = full("fedavg"), a_run("feddyn", distributed_local_accuracy=0.4)
    assert metric_of([both]) == "distributed.global.accuracy"
    assert metric_of([both, local]) == "distributed.local.accuracy"
    other = a_run("scaffold", distributed_global_accuracy=0.4)
    # Without a common metric, the first metric is used.
    assert metric_of([local, other]) == "distributed.global.accuracy"
    assert [row["accuracy"] for row in comparison([local, other])] == [None, 0.4]
    assert metric_of([a_run()]) is None
    assert metric_notes(comparison([a_run()]))[0].startswith("no accuracy")
    assert cell_notes(comparison([a_run()]))[0].startswith("no accuracy")
    with pytest.raises(
        RequestError, match=r"--metric all\.local\.accuracy: no run here.*There are: distributed"
    ):
        metric_of([local], "all.local.accuracy")


def test_notes_name_papers_that_report_another_cell_and_how_to_measure_it() -> None:
    rows = comparison([a_run("fedavg", distributed_global_accuracy=0.4)])
    assert metric_notes(rows) == ["accuracy: distributed.global.accuracy"]
    given: dict[str, Any] = {"distributed_global_accuracy": 0.5}
    rows = comparison([a_run("fedbug+fedavg", **given), a_run("fedbabu", **given), a_run("fedexp", **given)])
    (_, note) = metric_notes(rows)
    assert "fedbug+fedavg: all.global.accuracy (not measured; to" in note
    assert "(not measured; to measure it: --set evaluation.all=true)" in note
    assert "--set evaluation.local_test=0.2 --set evaluation.tune=all" in note
    assert "fedexp: last-two.global.accuracy (not measured)" in note


def test_seeds_that_a_rule_did_not_switch_are_called_as_those_it_did() -> None:
    stay, switch = (a_run("feddyn", seed, distributed_global_accuracy=0.5) for seed in range(2))
    switch.history[-1]["method"] = "fedavg"
    (row,) = comparison([stay, switch])
    assert (row["method"], row["reports"]) == ("feddyn->fedavg", ["distributed.global.accuracy"])


def test_equal_methods_are_told_apart_by_their_folder_s_name(tmp_path: Path) -> None:
    for alpha in (0.1, 0.2):
        for seed in range(2):
            folder = tmp_path / f"feddyn-{alpha}" / f"seed{seed}"
            folder.mkdir(parents=True)
            (folder / "config.toml").write_text(tomli_w.dumps({"alpha": alpha, "seed": seed, "rounds": 1}))
            line = {"round": 1, "method": "feddyn", "distributed.global.accuracy": 0.5}
            (folder / "history.jsonl").write_text(json.dumps(line) + "\n")
    rows = comparison([read_run(path.parent) for path in sorted(tmp_path.rglob("config.toml"))])
    assert [row["method"] for row in rows] == ["feddyn-0.1", "feddyn-0.2"]
    assert [row["label"] for row in rows] == ["feddyn", "feddyn"]
