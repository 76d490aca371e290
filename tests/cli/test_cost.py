"""kedge cost and the costs of kedge compare as a user types them."""

import json
from pathlib import Path

import pytest
from tests.cli.command import SMALL, kedge

METHODS = "fedavg, scaffold, fedbabu, fedbug+fedavg, anti(thaw=[0, 0, 2])+fedbabu, fedavg -> fedper@2"
KEYS = ("samples", "updates", "macs", "bytes_down", "bytes_up")
SMALLER = (*SMALL, "--set", "model.name=small-cnn", "--set", "partition.clients=6")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cost") / "runs"
    answer = kedge("run", "quickstart", *SMALLER, "--methods", METHODS, "--out", out, "--quiet")
    assert answer.code == 0, answer
    return out


def history(folder: Path) -> list[dict[str, dict[str, int]]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_what_is_told_beforehand_is_what_the_runs_cost(runs: Path) -> None:
    told = kedge("cost", "quickstart", *SMALLER, "--methods", METHODS, "--json").json()
    assert told["experiment"] == "quickstart"
    names = ["fedavg", "scaffold", "fedbabu", "fedbug+fedavg", "anti+fedbabu", "fedavg->fedper"]
    assert [run["method"] for run in told["runs"]] == names
    folders = [row["folder"] for row in json.loads((runs / "runs.json").read_text())]
    for run, folder in zip(told["runs"], folders, strict=True):
        lines = history(runs / folder)
        assert run["total"] == {k: sum(line["cost"][k] for line in lines) for k in KEYS}
        assert sum(phase["rounds"] for phase in run["phases"]) == len(lines) == 3
        assert (run["clients"], run["clients_per_round"]) == (6, 5)
    by_name = {run["method"]: run for run in told["runs"]}
    assert [p["rounds"] for p in by_name["anti+fedbabu"]["phases"]] == [1, 2]
    assert [p["method"] for p in by_name["fedavg->fedper"]["phases"]] == ["fedavg", "fedper"]
    assert by_name["scaffold"]["total"]["bytes_up"] == 2 * by_name["fedavg"]["total"]["bytes_up"]
    assert by_name["fedbabu"]["tuning"]["clients"] == 6
    assert by_name["fedavg"]["tuning"] is None


def test_the_table_fits_eighty_columns_and_says_what_it_counts() -> None:
    words = ("cost", "quickstart", "--methods", METHODS, "--papers-count")
    out = kedge(*words).out
    table = [line for line in out.splitlines() if line.startswith(("rounds", "1–", "3–", "all"))]
    assert table
    assert all(len(line.rstrip()) <= 80 for line in table)
    assert "papers' count: the parameters updated if all clients took part" in out
    assert "anti+fedbabu: 30 rounds, 5 of 20 clients in each" in out
    assert "fine-tuning before personal models are measured (20 clients, 5 epochs)" in out


def test_papers_count_every_client_in_every_round() -> None:
    """Equal clients, so it is parameters × batches × clients × rounds; six instead of the five that train."""
    words = ("--set", "partition=iid(clients=6)", "--set", "rounds=4", "--set", "evaluation.local_test=0")
    (run,) = kedge("cost", "quickstart", *words, "--papers-count", "--json").json()["runs"]
    assert run["total"]["papers_count"] == run["total"]["updates"] * 6 // 5
    parameters = run["phases"][0]["parameters"]
    assert run["total"]["papers_count"] % (parameters * 6 * 4) == 0


def test_double_precision_doubles_the_bytes_and_others_are_sent_as_single() -> None:
    (single,) = kedge("cost", "quickstart", *SMALLER, "--json").json()["runs"]
    (double,) = kedge("cost", "quickstart", *SMALLER, "--precision", "fp64", "--json").json()["runs"]
    for name in ("tf32", "bf16"):
        assert kedge("cost", "quickstart", *SMALLER, "--precision", name, "--json").json()["runs"] == [single]
    assert double["total"]["bytes_down"] == 2 * single["total"]["bytes_down"]
    assert double["total"]["macs"] == single["total"]["macs"]


def test_a_stage_that_a_rule_may_end_is_told(tmp_path: Path) -> None:
    plot = tmp_path / "cost.png"
    words = ("--methods", "fedavg -> fedprox@plateau(patience=2)", "--plot", plot)
    answer = kedge("cost", "quickstart", *SMALLER, *words)
    assert answer.code == 0, answer
    assert "fedavg may end earlier, by its rule" in answer.out
    assert plot.stat().st_size > 5000


def test_equal_methods_are_told_apart_by_their_arguments() -> None:
    found = kedge(
        "cost", "quickstart", *SMALLER, "--methods", "fedprox(mu=0.1), fedprox(mu=1)", "--json"
    ).json()
    assert [run["method"] for run in found["runs"]] == ["fedprox-mu-0.1", "fedprox-mu-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plot", "cost.jpg"), "--plot cost.jpg: need the name of a .png file"),
        (("--plot", "nowhere/cost.png"), "in an existing folder"),
        (("--methods", "fedavgg"), "Did you mean 'fedavg'"),
        (("--set", "rouns=3"), "Did you mean 'rounds'"),
        (("--precision", "fp8"), "precision"),
    ],
)
def test_wrong_requests_are_told(words: tuple[str, ...], said: str) -> None:
    answer = kedge("cost", "quickstart", *words)
    assert answer.code == 2
    assert said in answer.err
    assert not answer.out


@pytest.mark.slow
def test_compare_shows_accuracy_for_costs_and_what_a_target_took(runs: Path, tmp_path: Path) -> None:
    plot = tmp_path / "cost.png"
    answer = kedge("compare", runs, "--target", "0.01", "--cost-plot", plot)
    assert answer.code == 0, answer
    heads = [line.split() for line in answer.out.splitlines() if line.startswith(("method", "to 1 %"))]
    assert heads[1][:5] == ["method", "updated", "MACs", "down", "up"]
    assert all(head.startswith("%/") for head in heads[1][5:])
    assert heads[2] == ["to", "1", "%", "rounds", "updated", "MACs", "down", "up", "seconds"]
    assert plot.stat().st_size > 5000
    found = kedge("compare", runs, "--target", "0.01", "--cost-plot", plot, "--json").json()
    assert found["cost_plot"] == str(plot)
    for row in found["runs"]:
        lines = history(Path(row["folders"][0]))
        assert row["cost"] == {k: sum(line["cost"][k] for line in lines) for k in KEYS}
        assert row["accuracy_per_mac"] == row["accuracy"] / row["cost"]["macs"]
        assert row["accuracy_per_byte"] == row["accuracy"] / (
            row["cost"]["bytes_down"] + row["cost"]["bytes_up"]
        )
        until = int(row["rounds_to_target"])
        assert row["cost_to_target"] == {k: sum(line["cost"][k] for line in lines[:until]) for k in KEYS}
        assert row["seconds_to_target"] > 0


@pytest.mark.slow
def test_runs_without_costs_have_a_gap_and_say_so(runs: Path, tmp_path: Path) -> None:
    """Earlier versions of kedge wrote such folders."""
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.toml", "history.jsonl"):
        (old / name).write_text((runs / "fedavg" / name).read_text())
    lines = [{k: v for k, v in line.items() if k != "cost"} for line in history(old)]
    (old / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    both = kedge("compare", old, runs / "scaffold", "--target", "0.01")
    assert both.code == 0, both
    assert "no costs in the history" in both.out
    (alone,) = kedge("compare", old, "--target", "0.01", "--json").json()["runs"]
    assert alone["cost"] is alone["accuracy_per_mac"] is alone["cost_to_target"] is None
    assert alone["rounds_to_target"] >= 1
    refused = kedge("compare", old, "--cost-plot", tmp_path / "c.png")
    assert refused.code == 2
    assert "none of these runs has costs" in refused.err


FROZEN = """
from torch import nn

def network(shape, classes):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, classes))
    net[1].requires_grad_(False)
    return net
"""


def test_frozen_parameters_are_told_and_not_counted(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FROZEN)
    words = ("cost", "quickstart", "--set", "rounds=2", "--model", f"{tmp_path / 'mine.py'}:network")
    out = kedge(*words).out
    assert "585 parameters are frozen (requires_grad=False): not trained, not sent" in out
    (run,) = kedge(*words, "--json").json()["runs"]
    assert run["frozen_parameters"] == 65 * 9
    assert [phase["parameters"] for phase in run["phases"]] == [100]
    assert "frozen" not in kedge("cost", "quickstart", "--set", "rounds=2").out
