"""The introduction of a client: differences are named, and no text of the server is executed."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.loopback import received, task_of

from kedge.config.assemble import assemble
from kedge.config.experiment import Experiment, resolve
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.engines.flower.messages import Content, MessageError
from kedge.running.federation.introduction import (
    answer,
    check_answer,
    fingerprints,
    introduction,
    read_experiment,
    read_form,
)
from kedge.running.folders.identity import digest, experiment_identity

DOCUMENT = {
    "name": "small",
    "rounds": 2,
    "method": "feddyn(alpha=0.1)",
    "data": {"name": "synthetic", "samples": 100, "features": 4},
    "partition": {"name": "iid", "clients": 3},
    "engine": {"name": "sequential", "precision": "fp64", "device": "cpu"},
}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return resolve(DOCUMENT)


@pytest.fixture(scope="module")
def task(experiment: Experiment) -> Task:
    return assemble(experiment)


def sent(experiment: Experiment, task: Task) -> Content:
    return received(introduction(experiment, task))


def test_a_client_reads_the_server_s_experiment(experiment: Experiment, task: Task) -> None:
    content = sent(experiment, task)
    found = read_experiment(content, None)
    assert digest(experiment_identity(found)) == digest(experiment_identity(experiment))
    assert read_form(content).shape == (4,)
    assert fingerprints(found, assemble(found)) == fingerprints(experiment, task)


@pytest.mark.parametrize(
    "line",
    [
        'method = "own.py:method"',
        'method = "fedavg+own:schedule(a=1)"',
        '[model]\nname = "own.py:network"',
        '[[then]]\nat = 1\nmethod = {name = "own.py:method"}',
        '[method]\nname = "fedavg"\nand = [{name = "own.py:method"}]',
    ],
)
def test_code_of_the_server_is_refused_before_it_is_imported(
    line: str, experiment: Experiment, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("raise AssertionError('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    content = sent(experiment, task)
    changed = content._replace(facts={**content.facts, "experiment": f'name = "x"\n{line}\n'})
    with pytest.raises(RequestError, match="names code of its own"):
        read_experiment(changed, None)


def test_another_experiment_of_the_site_is_refused(experiment: Experiment, task: Task) -> None:
    other = resolve({**DOCUMENT, "method": "feddyn(alpha=0.2)"})
    with pytest.raises(RequestError, match="another experiment"):
        read_experiment(sent(experiment, task), other)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("kedge", "the version of kedge"),
        ("method", "the method"),
        ("model", "the network"),
        ("data", "the pre"),
    ],
)
def test_a_client_that_differs_is_refused_with_the_difference(
    name: str, sentence: str, experiment: Experiment, task: Task
) -> None:
    prints = fingerprints(experiment, task)
    content = received(answer(1, 10, {**prints, name: "other"}))
    with pytest.raises(MessageError, match=f"{sentence}.* differs"):
        check_answer(content, prints, 3)


def test_a_client_with_an_unknown_number_or_without_samples_is_refused(
    experiment: Experiment, task: Task
) -> None:
    prints = fingerprints(experiment, task)
    assert check_answer(received(answer(2, 10, prints)), prints, 3) == 2
    with pytest.raises(MessageError, match="numbers 0 to 2"):
        check_answer(received(answer(3, 10, prints)), prints, 3)
    with pytest.raises(MessageError, match="no samples"):
        check_answer(received(answer(2, 0, prints)), prints, 3)


def test_other_methods_have_other_fingerprints() -> None:
    found = {fingerprints(resolve(DOCUMENT), task_of(method))["method"] for method in ("fedavg", "fedavgm")}
    assert len(found) == 2
