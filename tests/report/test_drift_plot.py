"""The diagnostics' figures come from histories alone; values that are missing are left out and reported."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests.cli.command import kedge

from kedge.report.plots.curves import Panel, curves, names
from kedge.report.plots.drift import FIGURES, last_by_unit, last_clients, last_frequency, ranked
from kedge.report.runs import read_run, seed_groups

LINE: dict[str, Any] = {
    "drift.diversity": 0.5, "drift.diversity.unit0": 0.4, "drift.diversity.unit1": 0.7,
    "drift.cosine.rounds": 0.2, "drift.cosine.clients": 0.1, "drift.norm": 1.0, "drift.moved": 0.5,
    "drift.u": 2.0, "drift.c": 0.1, "features.clusters": 30, "features.frequency": [3, 0, 27],
    "features.retained.local": 4.5, "features.retained.next": 5, "features.retained.average": 6,
    "features.cka.clients.unit0": 0.9,
    "cost": dict(parameters=10, samples=6, updates=20, macs=600, bytes_down=40, bytes_up=40),
}  # fmt: skip


def folder(path: Path, lines: list[dict[str, Any]], clients: Any = None, **config: Any) -> Path:
    """A run's folder with the files that a report reads."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps({"rounds": len(lines), **config}))
    history = [
        {"round": n, "stage": 0, "method": "feddyn", "clients": [0], **line}
        for n, line in enumerate(lines, 1)
    ]
    (path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    if clients:
        (path / "clients.jsonl").write_text(json.dumps(clients) + "\n")
    return path


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


@pytest.mark.slow
def test_a_full_history_gives_every_figure(tmp_path: Path) -> None:
    clients = {"round": 2, "personal.local.accuracy": [0.5, None, 0.75]}
    run = folder(tmp_path / "run", [LINE, LINE], clients)
    answer = kedge("plot", run, "--out", tmp_path / "figures", "--json")
    assert answer.code == 0, answer
    document = answer.json()
    assert [*document["figures"]] == [figure.name for figure in FIGURES]
    assert document["left_out"] == {}
    for name, path in document["figures"].items():
        assert Path(path) == tmp_path / "figures" / f"{name}.png"
        wide, high = size(Path(path).read_bytes())
        assert wide > 400
        assert high > (300 if name != "cost" else 200)  # one row for each run


def test_what_a_history_lacks_is_left_out_and_said(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [{"train.loss": 1.0, "drift.diversity": None}])
    answer = kedge("plot", run, "--out", tmp_path / "figures")
    assert answer.code == 0
    assert "left out: diversity.png (no run has drift metrics: set measure.drift = true)" in answer.out
    assert "left out: clients.png (no run has local tests" in answer.out
    assert not (tmp_path / "figures").exists()


def test_one_figure_and_a_wrong_one(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [LINE])
    one = kedge("plot", run, "--out", tmp_path / "a", "--figure", "cosine", "--json").json()
    assert [*one["figures"]] == ["cosine"]
    wrong = kedge("plot", run, "--out", tmp_path / "a", "--figure", "cosin")
    assert wrong.code == 2
    assert "Did you mean 'cosine'?" in wrong.err
    (tmp_path / "file").write_text("")
    taken = kedge("plot", run, "--out", tmp_path / "file")
    assert (taken.code, taken.out) == (2, "")
    assert "is a file" in taken.err
    assert kedge("plot", tmp_path / "none", "--out", tmp_path / "a").code == 2


def test_a_probe_goes_before_the_round_s_own(tmp_path: Path) -> None:
    plain = read_run(folder(tmp_path / "plain", [LINE]))
    probed = read_run(folder(tmp_path / "probed", [{**LINE, "probe.diversity": 0.1}]))
    panel = Panel(("probe.diversity", "drift.diversity"), "diversity")
    assert panel.shown([[plain]]) == "drift.diversity"
    assert panel.shown([[plain], [probed]]) == "probe.diversity"
    everybody = read_run(folder(tmp_path / "everybody", [{**LINE, "probe.diversity": 0.5}, LINE]))
    assert panel.shown([[everybody]]) == "drift.diversity"  # which has more rounds
    assert panel.shown([[everybody], [probed]]) == "probe.diversity"
    assert Panel(("other",), "nothing").shown([[plain]]) is None
    assert curves((Panel(("other",), "nothing"),), [plain]) is None


def test_what_is_read_of_a_run(tmp_path: Path) -> None:
    gap = {**LINE, "drift.diversity.unit1": None}
    clients = {"round": 2, "personal.local.accuracy": [0.5, None, 0.75]}
    run = read_run(folder(tmp_path / "run", [LINE, gap], clients))
    assert last_by_unit("drift.diversity", run) == {0.0: 0.4, 1.0: 0.7}
    assert last_frequency(run) == {1.0: 3.0, 2.0: 0.0, 3.0: 27.0}
    assert ranked("personal.local.accuracy", run) == {1.0: 75.0, 2.0: 50.0}
    assert last_clients(read_run(folder(tmp_path / "without", [LINE]))) == {}


def test_runs_that_differ_in_what_was_measured_are_one_method(tmp_path: Path) -> None:
    one = read_run(folder(tmp_path / "one", [LINE], seed=0, measure={"drift": True}))
    two = read_run(folder(tmp_path / "two", [LINE], seed=1, measure={"drift": False}))
    other = read_run(folder(tmp_path / "other", [LINE], seed=0, method={"name": "x"}))
    assert [len(group) for group in seed_groups([one, two, other])] == [2, 1]
    assert names(seed_groups([one, two, other])) == ["one", "other"]
    assert names([[one]]) == ["feddyn"]


@pytest.mark.parametrize("missing", ["drift.u", "features.clusters"])
def test_a_panel_that_is_missing_does_not_take_the_figure_along(tmp_path: Path, missing: str) -> None:
    run = read_run(folder(tmp_path / "run", [{k: v for k, v in LINE.items() if k != missing}]))
    drawn = {name: figure.draw([run]) for figure in FIGURES if (name := figure.name) in ("shift", "clusters")}
    assert drawn["shift"] is not None
    assert (drawn["clusters"] is None) == (missing == "features.clusters")
