"""kedge compare and kedge list as a user types them: one metric, every cell, the rules."""

from pathlib import Path

import pytest
from tests.cli.command import SMALL, kedge

METHODS = "fedavg, feddyn(alpha=0.1), fedbabu, fedbug+fedavg"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "runs"
    words = ("--methods", METHODS, "--set", "evaluation.all=true", "--set", "partition.clients=6")
    answer = kedge("run", "quickstart", *SMALL, *words, "--out", out)
    assert answer.code == 0, answer
    assert "accuracy: distributed.global.accuracy" in answer.out
    return out


@pytest.mark.slow
def test_the_table_says_which_accuracy_it_shows_and_which_papers_report_another(runs: Path) -> None:
    answer = kedge("compare", runs)
    assert answer.code == 0
    assert "accuracy: distributed.global.accuracy" in answer.out
    told = " ".join(answer.out.split())
    assert "report another accuracy — feddyn: average.global.accuracy; fedbabu: personal.local.acc" in told
    assert "fedavg: average" not in told  # there it is the same model


@pytest.mark.slow
def test_another_metric_is_shown_reached_and_drawn(runs: Path, tmp_path: Path) -> None:
    name, plot = "average.local.accuracy", tmp_path / "plot.png"
    answer = kedge("compare", runs, "--metric", name, "--target", "0.01", "--plot", plot)
    assert answer.code == 0, answer
    assert f"accuracy: {name}" in answer.out
    found = kedge("compare", runs, "--metric", name, "--target", "0.01", "--json").json()
    assert found["metric"] == name
    for row in found["runs"]:
        assert row["accuracy"] == row["cells"][name]["last"]
        assert row["best"] == row["cells"][name]["best"]
        assert row["rounds_to_target"] >= 1
    assert plot.stat().st_size > 10_000
    tuned = kedge(
        "compare", runs, "--metric", "personal.local.accuracy.tuned", "--plot", plot, "--json"
    ).json()
    assert [row["accuracy"] is None for row in tuned["runs"]] == [True, True, False, True]


def test_every_cell_with_the_papers_marked(runs: Path) -> None:
    last, both = kedge("compare", runs, "--cells"), kedge("compare", runs, "--cells", "--best")
    assert last.code == both.code == 0
    assert last.out.splitlines()[1].split() == ["method", "distributed", "average", "all", "personal"]
    row = next(line for line in last.out.splitlines() if line.startswith("fedbabu"))
    assert row.rstrip().endswith("*")
    note = "* the accuracy that its paper reports — fedavg: average.global.accuracy or distributed"
    assert note in last.out
    assert "best round of each cell" in both.out
    assert both.out.count("fedbug+fedavg") == last.out.count("fedbug+fedavg") + 1


def test_json_has_every_cell(runs: Path) -> None:
    rows = kedge("compare", runs, "--cells", "--json").json()["runs"]
    assert [row["reports"][0] for row in rows] == [
        "average.global.accuracy",
        "average.global.accuracy",
        "personal.local.accuracy.tuned",
        "all.global.accuracy",
    ]
    for row in rows:
        assert {"distributed.global.accuracy", "all.local.accuracy", "personal.local.accuracy"} <= set(
            row["cells"]
        )
        assert set(row["cells"]["all.global.accuracy"]) == {
            "last", "last_std", "best", "best_std", "runs", "partial",
        }  # fmt: skip


def test_wrong_requests_are_told(runs: Path) -> None:
    answer = kedge("compare", runs, "--metric", "all.global.acuracy")
    assert answer.code == 2
    assert "Did you mean 'all.global.accuracy'" in answer.err
    assert "There are: distributed.global.accuracy, distributed.local.accuracy, average" in answer.err
    assert kedge("compare", runs, "--metric", "train.loss").code == 2
    for words in (
        ("--cells", "--metric", "all.global.accuracy"),
        ("--cells", "--target", "0.9"),
        ("--best",),
    ):
        answer = kedge("compare", runs, *words)
        assert answer.code == 2
        assert "--cells" in answer.err


def test_the_list_tells_rules_and_what_papers_report() -> None:
    rules = kedge("list", "rules", "--json").json()
    assert {row["name"]: set(row["arguments"]) for row in rules} == {
        "plateau": {"metric", "patience", "by"},
        "proposition1": {"threshold", "estimate", "smooth"},
    }
    methods = {row["name"]: row["reports"] for row in kedge("list", "methods", "--json").json()}
    assert methods["fedbabu"] == ["personal.local.accuracy.tuned"]
    assert methods["feddyn"] == ["average.global.accuracy"]
    schedules = {row["name"]: row["reports"] for row in kedge("list", "schedules", "--json").json()}
    assert schedules["fedbug"] == ["all.global.accuracy"]
    assert schedules["all"] == []
    assert "proposition1" in kedge("list").out
