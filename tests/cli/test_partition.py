"""kedge partition as a user types it: the table, JSON, PNG, page and wrong requests."""

import errno
import importlib
import os
import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import kedge

from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.config.federations import federation_of
from kedge.report.plots import png


def test_the_table_names_dataset_partition_and_the_number() -> None:
    answer = kedge("partition", "quickstart")
    assert answer.code == 0, answer
    lines = [line.rstrip() for line in answer.out.splitlines()]
    assert lines[0] == "digits, dirichlet(clients=20, alpha=0.1), seed 0"
    heads = ["client", "samples", "classes", "largest", "share %", "distance", "local test"]
    assert re.split(r"  +", lines[1]) == heads
    assert [line.split()[0] for line in lines[2:22]] == [str(client) for client in range(20)]
    assert (
        lines[-3] == "20 clients · 10 classes · 1,140 training samples · 280 in local tests · 18 unassigned"
    )
    assert re.fullmatch(r"heterogeneity 0\.\d{3} \(0: random partition, 1: .*\)", lines[-2])
    assert lines[-1].startswith("mean distance of clients' classes from the overall distribution 0.")


def test_the_json_is_the_deal_of_a_run() -> None:
    words = ("--set", "partition.alpha=0.5", "--seed", "7", "--json")
    answer = kedge("partition", "quickstart", *words)
    assert answer.code == 0, answer
    found = answer.json()
    assert {k: found[k] for k in ("experiment", "dataset", "partition", "seed", "clients", "classes")} == {
        "experiment": "quickstart", "dataset": "digits", "partition": "dirichlet(clients=20, alpha=0.5)",
        "seed": 7, "clients": 20, "classes": 10,
    }  # fmt: skip
    assert found["png"] is found["html"] is None
    document = read("quickstart")
    document["partition"]["alpha"] = 0.5
    federation = federation_of(resolve({**document, "seed": 7}))
    labels = federation.pool.y.numpy()
    for row, own, test in zip(found["rows"], federation.clients, federation.local_tests, strict=True):
        assert row["counts"] == np.bincount(labels[own], minlength=10).tolist()
        assert (row["samples"], row["local_test"]) == (len(own), len(test))
    parts = found["heterogeneity"]
    assert parts["value"] == pytest.approx(
        (parts["distance"] - parts["chance"]) / (parts["most"] - parts["chance"])
    )
    assert set(found["summary"]) == {"samples", "classes", "largest_share", "distance", "local_test"}


def test_the_number_tells_partitions_apart() -> None:
    def value(text: str) -> float:
        words = ("--set", f"partition={text}", "--set", "evaluation.local_test=0", "--json")
        return float(kedge("partition", "quickstart", *words).json()["heterogeneity"]["value"])

    assert abs(value("iid(clients=20)")) < 0.03
    assert abs(value("quantity(clients=20, sigma=1)")) < 0.03
    assert 0.2 < value("dirichlet(clients=20, alpha=1)") < value("dirichlet(clients=20, alpha=0.1)") < 1
    assert value("shards(clients=20, per_client=1)") > 0.8


def test_png_and_page_are_written_and_named(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    answer = kedge("partition", "quickstart", "--out", out)
    assert answer.code == 0, answer
    assert sorted(p.name for p in out.iterdir()) == ["partition.html", "partition.png"]
    assert (out / "partition.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "partition.html").read_text()
    rows = kedge("partition", "quickstart", "--json").json()["rows"]
    assert text.count("<circle") == sum(row["classes"] for row in rows)
    assert f"client 0: {rows[0]['samples']} samples" in text
    assert "<p>20 clients · 10 classes · " in text
    assert answer.out.splitlines()[-2:] == [
        f"written: {out}/partition.png",
        f"written: {out}/partition.html",
    ]


def test_either_file_alone_many_clients_and_json(tmp_path: Path) -> None:
    html, picture = tmp_path / "a.html", tmp_path / "a.png"
    words = ("--set", "partition.clients=60", "--json")
    found = kedge("partition", "quickstart", *words, "--html", html).json()
    assert (found["html"], found["png"]) == (str(html), None)
    assert "<circle" not in html.read_text()
    assert kedge("partition", "quickstart", *words, "--png", picture).json()["png"] == str(picture)
    assert sorted(tmp_path.iterdir()) == [html, picture]


def test_natural_clients_of_a_file_and_a_note_on_what_the_number_sees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, y = np.zeros((12, 4), dtype=np.float32), np.arange(12) % 3
    site = np.repeat(["b", "a", "c"], [6, 4, 2])
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3], site_train=site)
    (tmp_path / "mine.toml").write_text('data = "mine"\npartition = "natural"\n')
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    answer = kedge("partition", tmp_path / "mine.toml")
    assert answer.code == 0, answer
    assert answer.out.startswith("mine, natural, seed 0\n")
    assert "natural clients may differ in their features as well" in answer.out
    rows = kedge("partition", tmp_path / "mine.toml", "--json").json()["rows"]
    assert [row["counts"] for row in rows] == [[2, 1, 1], [2, 2, 2], [0, 1, 1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quickstrat"], "no shipped experiment of this name. Did you mean 'quickstart'?"),
        (["quickstart", "--set", "partition.alpha=0"], "Dirichlet(alpha=0.0): need a finite alpha > 0"),
        (["quickstart", "--set", "partition.alhpa=1"], "unknown key partition.alhpa. Did you mean 'alpha'?"),
        (["quickstart", "--set", "partition.clients=3"], "per_round = 5: there are only 3 clients"),
        (["quickstart", "--set", "partition=natural"], "Natural: no keys given"),
        (["quickstart", "--seed", "-1"], "seed = -1: need a whole number from 0"),
        (["quickstart", "--png", "a.pdf"], "--png a.pdf: need the name of a .png file"),
        (["quickstart", "--html", "/nowhere/a.html"], "a.html: need the name of a .html file"),
        (["quickstart", "--out", "x", "--png", "a.png"], "--out x names both files: leave --png and"),
        (["quickstart", "--out", "/dev/null"], "--out /dev/null: /dev/null is a file; name a folder"),
        (["quickstart", "--out", "/dev/null/x"], "--out /dev/null/x: /dev/null is a file"),
    ],
)  # fmt: skip
def test_a_wrong_request_says_why(words: list[str], message: str) -> None:
    answer = kedge("partition", *words)
    assert answer.code == 2, answer
    assert message in answer.err
    assert answer.out == ""


def test_without_an_experiment_the_usage_is_shown() -> None:
    answer = kedge("partition")
    assert answer.code == 2
    assert "EXPERIMENT" in answer.err


def test_missing_data_exit_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    answer = kedge("partition", "quickstart", "--set", "data.name=no-such-set")
    assert answer.code == 3
    assert "no-such-set.npz is missing" in answer.err


def test_without_matplotlib_the_png_is_refused_at_once_and_the_page_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(png, "find_spec", lambda name: None)
    for words in (("--png", tmp_path / "a.png"), ("--out", tmp_path / "a")):
        answer = kedge("partition", "quickstart", *words)
        assert answer.code == 2
        assert "a PNG needs matplotlib, which is not installed: pip install 'kedge[plot]'" in answer.err
        assert "The page needs no matplotlib: --html FILE." in answer.err
    assert not list(tmp_path.iterdir())
    assert kedge("partition", "quickstart", "--html", tmp_path / "a.html").code == 0


def test_a_disk_that_takes_no_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(importlib.import_module("kedge.cli.actions.partition"), "write", full)
    answer = kedge("partition", "quickstart", "--html", tmp_path / "a.html")
    assert answer.code == 1
    assert f"{tmp_path}/a.html cannot be written: No space left on device." in answer.err
    assert "Name another file: --html FILE." in answer.err


def test_help_lists_the_command() -> None:
    assert "partition" in kedge("--help").out
