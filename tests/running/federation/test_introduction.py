"""The introduction of a client: differences are named, and no text of the server is executed."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.loopback import received

from kedge.config.assemble import assemble
from kedge.config.experiment import Experiment, resolve
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.engines.flower.messages import Content, MessageError
from kedge.running.federation.agreement import Compared, facts_to_compare
from kedge.running.federation.introduction import (
    Membership,
    answer,
    check_answer,
    introduction,
    read_experiment,
    read_form,
    read_labels,
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
    assert facts_to_compare(found, assemble(found)) == facts_to_compare(experiment, task)


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


def test_another_experiment_of_the_site_is_refused_with_the_keys_that_differ(
    experiment: Experiment, task: Task
) -> None:
    other = resolve({**DOCUMENT, "method": "feddyn(alpha=0.2)", "training": {"epochs": 7}})
    with pytest.raises(RequestError, match="another experiment than --experiment names") as caught:
        read_experiment(sent(experiment, task), other)
    assert "method.alpha: the server has 0.1, the client 0.2" in str(caught.value)
    assert "training.epochs: the server has 1, the client 7" in str(caught.value)


def changed(compared: Compared, kind: str, **facts: object) -> Compared:
    """Facts of a client, in which those of one kind have other values; None: the fact is missing."""
    merged = {**compared[kind], **{name.replace("_", " "): value for name, value in facts.items()}}
    return {**compared, kind: {name: value for name, value in merged.items() if value is not None}}


DIFFERENCES: dict[str, tuple[str, dict[str, object], str]] = {
    "version": ("kedge", {"version": "0.0"}, "the version of kedge differs: version: the server has"),
    "scale": ("data", {"scale": 0.5}, "scale: the server has 1.0, the client 0.5"),
    "mean": ("data", {"mean": [0.1, 0.2]}, r"mean: the server has \[0.0\], the client \[0.1, 0.2\]"),
    "std": ("data", {"std": [2.0]}, r"std: the server has \[1.0\], the client \[2.0\]"),
    "shape": (
        "data", {"shape of a sample": [8]}, r"shape of a sample: the server has \[4\], the client \[8\]"
    ),
    "kind": (
        "data", {"kind of numbers": "integer"}, 'kind of numbers: the server has "floating point", the client'
    ),
    "more code": ("code", {"own.py": "sha256 1"}, 'own.py: the client has "sha256 1", the server has none'),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_client_that_differs_is_refused_with_both_values(
    name: str, experiment: Experiment, task: Task
) -> None:
    kind, facts, sentence = DIFFERENCES[name]
    compared = facts_to_compare(experiment, task)
    content = received(answer(Membership(1, 10), changed(compared, kind, **facts)))
    with pytest.raises(MessageError, match=sentence):
        check_answer(content, compared, 3)


def test_another_network_is_refused_with_the_leaves_that_differ(experiment: Experiment, task: Task) -> None:
    wide = resolve({**DOCUMENT, "model": {"name": "mlp", "hidden": [8]}})
    compared = facts_to_compare(experiment, task)
    others = {**compared, "model": facts_to_compare(wide, assemble(wide))["model"]}
    with pytest.raises(MessageError, match=r"the network differs: 1.weight: the server has \"64×4 float32"):
        check_answer(received(answer(Membership(1, 10), others)), compared, 3)
    other = facts_to_compare(resolve({**DOCUMENT, "seed": 1}), assemble(resolve({**DOCUMENT, "seed": 1})))
    with pytest.raises(MessageError, match="sha256") as caught:
        check_answer(received(answer(Membership(1, 10), {**compared, "model": other["model"]})), compared, 3)
    assert "; and 1 more" in str(caught.value)


def test_another_method_is_refused_with_the_setting_that_differs(experiment: Experiment, task: Task) -> None:
    other = resolve({**DOCUMENT, "method": "feddyn(alpha=0.3)"})
    compared = facts_to_compare(experiment, task)
    others = {**compared, "method": facts_to_compare(other, assemble(other))["method"]}
    with pytest.raises(MessageError, match=r"alpha: the server has 0\.1, the client 0\.3"):
        check_answer(received(answer(Membership(1, 10), others)), compared, 3)


@pytest.mark.parametrize("text", ["", "[", "[1]", "1", "null", "[" * 100_000])
def test_facts_that_cannot_be_read_are_refused(text: str, experiment: Experiment, task: Task) -> None:
    compared = facts_to_compare(experiment, task)
    content = received(answer(Membership(1, 10), compared))
    damaged = content._replace(facts={**content.facts, "fact.method": text})
    with pytest.raises(MessageError, match="its facts on the method"):
        check_answer(damaged, compared, 3)


def test_a_client_with_an_unknown_number_or_without_samples_is_refused(
    experiment: Experiment, task: Task
) -> None:
    compared = facts_to_compare(experiment, task)
    content = received(answer(Membership(2, 10, labels=("a", "b")), compared))
    assert check_answer(content, compared, 3) == 2
    assert read_labels(content) == ("a", "b")
    with pytest.raises(MessageError, match="numbers 0 to 2"):
        check_answer(received(answer(Membership(3, 10), compared)), compared, 3)
    with pytest.raises(MessageError, match="no samples"):
        check_answer(received(answer(Membership(2, 0), compared)), compared, 3)
