"""A site joins a training: its own settings are checked against the server's introduction."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.loopback import received
from tests.running.federation.test_introduction import DOCUMENT

from kedge.config.assemble import assemble
from kedge.config.experiment import resolve
from kedge.core.errors import DataError, RequestError
from kedge.engines.flower.messages import Content, Request
from kedge.running.federation.introduction import answer, introduction
from kedge.running.federation.labels import Names
from kedge.running.federation.site import Site, run_lines, run_of
from kedge.running.federation.site_data import SiteFiles
from kedge.running.federation.uploads import explanation
from kedge.running.federation.validation import obey

NAMES: Names = tuple("abcdefghij")


def sent(labels: Names = (), **tables: Any) -> Content:
    experiment = resolve({**DOCUMENT, **tables})
    return received(introduction(experiment, assemble(experiment), labels))


def test_a_site_reads_what_it_takes_part_in_and_what_happens_to_its_metrics(tmp_path: Path) -> None:
    content = sent(NAMES, evaluation={"local_test": 0.25})
    site = Site("", 1, tmp_path, SiteFiles(labels=NAMES))
    run = run_of(site, content, None)
    lines = list(run_lines(run, site, NAMES))
    assert lines[:2] == [
        "the experiment: small, feddyn, 2 rounds",
        "you are client 1 with 20 training samples",
    ]
    assert lines[2].startswith("7 validation samples: metrics are written to ")
    assert lines[2].endswith("metrics.jsonl, and not sent")
    assert lines[3] == "the labels mean the same as on the server: a, b, c, d, e, f, g, h, i, j"
    assert run_of(site, content, run) is run


@pytest.mark.parametrize(
    ("local_test", "shares", "line"),
    [
        (0.0, False, "No metrics are sent: you have no validation set (--validation FILE)."),
        (
            0.25,
            False,
            "No metrics on your validation set are sent. With --share-metrics, each evaluation would",
        ),
        (0.25, True, "Sent with each evaluation, because of --share-metrics:"),
    ],
)
def test_the_explanation_names_the_metrics(
    local_test: float, shares: bool, line: str, tmp_path: Path
) -> None:
    run = run_of(Site("", 0, tmp_path, shares=shares), sent(evaluation={"local_test": local_test}), None)
    text = "\n".join(explanation(run.task, run.member))
    assert line in text
    tests = len(run.task.federation.local_tests[0])
    assert (f"the number of your validation samples, {tests};" in text) == bool(local_test)
    assert f"whether you have a validation set ({'yes' if local_test else 'no'})" in text


def test_a_site_with_other_labels_or_too_few_names_takes_no_part(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"label 0 means 'a' on the server and 'j' on the client"):
        run_of(Site("", 0, tmp_path, SiteFiles(labels=NAMES[::-1])), sent(NAMES), None)
    with pytest.raises(RequestError, match=r"--labels has 2 names \(a, b\); the experiment has 10 classes"):
        run_of(Site("", 0, tmp_path, SiteFiles(labels=NAMES[:2])), sent(NAMES), None)


PRIVATE: dict[str, Any] = {
    "method": "fedavg(weights='uniform')",
    "privacy": {"clip": 1.0, "noise": 0.0, "delta": 1e-5},
    "training": {"on_divergence": "drop"},
    "evaluation": {"local_test": 0.25},
}


def test_a_site_does_not_evaluate_in_a_private_training_and_sends_no_number_of_samples(
    tmp_path: Path,
) -> None:
    site = Site("", 0, tmp_path)
    run = run_of(site, sent(**PRIVATE), None)
    assert (run.member.samples, run.member.evaluates) == (None, False)
    assert "samples" not in answer(run.member, {}).facts
    assert list(run_lines(run, site, ()))[2].startswith("the experiment is private: neither metrics nor")
    assert "No metrics are sent: sites do not evaluate in a private run." in explanation(run.task, run.member)
    files = SiteFiles(tmp_path / "own.npz", tmp_path / "held-out.npz")
    with pytest.raises(RequestError, match=r"^--validation and --share-metrics: the experiment is private"):
        run_of(Site("", 0, tmp_path, files, shares=True), sent(**PRIVATE), None)
    orders = {"client": 0, "round": 1, "stage": 0, "stage_round": 1, "seed": 0, "memory": 0, "clients": 2}
    request = received(Request("evaluate", {**orders, "evaluated": 1, "own": False, "tuned": False}, {}))
    reply = obey(run.engine, run.validation, request, print)
    assert reply.facts == {"lost": False}
    assert not run.validation.file.exists()


def test_metrics_of_a_private_training_are_not_shared(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--share-metrics: the experiment is private"):
        run_of(Site("", 0, tmp_path, shares=True), sent(**PRIVATE), None)
